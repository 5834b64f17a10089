#!/usr/bin/env bash
# Sets up all that the tests need, then runs every check and every test; fails when one of them does.
# Arguments go to pytest, for example: tests/run.sh tests/unit -k config
# tests/run.sh -m soak runs what takes longest instead: more kills, floods, waiting. The rest takes 25 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./spark-submit.sh --set-up dev
bin=.venv/bin

echo "== ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .
echo "== mypy"
"$bin/mypy"

echo "== tests"
if [[ $# -gt 0 ]]; then
  exec "$bin/python" -m pytest "$@"
fi
# Seconds first, minutes last; a folder at a time, so that one that is missing or empty fails.
folders() {
  for folder in "$@"; do
    "$bin/python" -m pytest -q "tests/$folder" || return 1
  done
}
folders unit property

# Two at once: most of a test's time goes by in starts and in waiting for one core. The load needs both.
behind=$(mktemp)
set -m
folders spark recovery >"$behind" 2>&1 &
other=$!
set +m
trap 'kill -- "-$other" 2>/dev/null || true; rm -f "$behind"' EXIT
failed=0
folders e2e || failed=1
wait "$other" || failed=1
cat "$behind"
[[ $failed == 0 ]] || exit 1
folders steady
