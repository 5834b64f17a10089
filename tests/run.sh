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
# Three processes beside each other, where memory allows: one after the other takes more than twice as long.
with_spark=(tests/recovery tests/spark)
with_own_clients=(tests/e2e/test_producer.py tests/e2e/test_producer_faults.py tests/e2e/test_embedded_broker.py)
without_spark=(tests/unit tests/property "${with_own_clients[@]}") # the last ones mostly wait for time-outs
others=(tests/e2e "${with_own_clients[@]/#/--ignore=}")
free_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
failed=0
if ((free_kb < 14000000)); then
  "$bin/python" -m pytest -q "${without_spark[@]}" || failed=1
  "$bin/python" -m pytest -q "${with_spark[@]}" || failed=1
  "$bin/python" -m pytest -q "${others[@]}" || failed=1
else
  logs=$(mktemp -d)
  beside=()
  trap 'kill "${beside[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
  "$bin/python" -m pytest -q "${others[@]}" >"$logs/e2e" 2>&1 &
  beside+=($!)
  "$bin/python" -m pytest -q "${without_spark[@]}" >"$logs/without_spark" 2>&1 &
  beside+=($!)
  "$bin/python" -m pytest -q "${with_spark[@]}" || failed=1
  for each in "${beside[@]}"; do
    wait "$each" || failed=1
  done
  cat "$logs/without_spark" "$logs/e2e"
fi
"$bin/python" -m pytest -q tests/steady || failed=1 # alone: it measures
exit "$failed"
