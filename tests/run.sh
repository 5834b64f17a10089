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
# Three processes beside each other, where memory allows: one after the other takes more than twice as long. The tests of
# clients mostly wait for time-outs, so they go with those of the rules.
clients=(tests/e2e/test_producer.py tests/e2e/test_producer_faults.py tests/e2e/test_embedded_broker.py)
rules=(tests/unit tests/property tests/spark "${clients[@]}")
commands=(tests/e2e "${clients[@]/#/--ignore=}")
kills=(tests/recovery)
free_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
failed=0
if ((free_kb < 14000000)); then
  "$bin/python" -m pytest -q "${rules[@]}" || failed=1
  "$bin/python" -m pytest -q "${kills[@]}" || failed=1
  "$bin/python" -m pytest -q "${commands[@]}" || failed=1
else
  logs=$(mktemp -d)
  beside=()
  trap 'kill "${beside[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
  "$bin/python" -m pytest -q "${commands[@]}" >"$logs/commands" 2>&1 &
  beside+=($!)
  "$bin/python" -m pytest -q "${rules[@]}" >"$logs/rules" 2>&1 &
  beside+=($!)
  "$bin/python" -m pytest -q "${kills[@]}" || failed=1
  for each in "${beside[@]}"; do
    wait "$each" || failed=1
  done
  cat "$logs/rules" "$logs/commands"
fi
"$bin/python" -m pytest -q tests/steady || failed=1 # alone: it measures
exit "$failed"
