#!/usr/bin/env bash
# Sets up all that the tests need, then runs every check and every test but the longest; fails when one of them does.
# Arguments go to pytest, for example: tests/run.sh tests/unit -k config
# What takes longest (more kills, floods, waiting) is marked `soak` and left out: tests/nightly.sh runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./spark-submit.sh --set-up dev
bin=.venv/bin

echo "== ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .
echo "== mypy, lib and tests"
"$bin/mypy"

echo "== tests"
if [[ $# -gt 0 ]]; then
  exec "$bin/python" -m pytest "$@"
fi
# Two processes beside each other, where memory allows: one after the other takes twice as long.
others=(tests/recovery tests/spark tests/property tests/unit)
free_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
failed=0
if ((free_kb < 12000000)); then
  "$bin/python" -m pytest -q "${others[@]}" || failed=1
  "$bin/python" -m pytest -q tests/e2e || failed=1
else
  log=$(mktemp)
  "$bin/python" -m pytest -q tests/e2e >"$log" 2>&1 &
  beside=$!
  trap 'kill "$beside" 2>/dev/null || true; rm -f "$log"' EXIT
  "$bin/python" -m pytest -q "${others[@]}" || failed=1
  wait "$beside" || failed=1
  cat "$log"
fi
"$bin/python" -m pytest -q tests/steady || failed=1 # alone: it measures
exit "$failed"
