#!/usr/bin/env bash
# Sets up all that the tests need, then runs every check and every test; fails when one of them does.
# Arguments go to pytest, for example: tests/run.sh tests/unit -k config
# tests/run.sh -m soak runs what takes longest instead: more kills, floods, waiting. The rest takes 24 minutes on 2 cores.
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
for folder in unit property spark recovery e2e steady; do
  "$bin/python" -m pytest -q "tests/$folder"
done
