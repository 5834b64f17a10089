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
# Seconds first, minutes last; a folder at a time, so that one that is missing or empty fails.
for folder in unit property spark recovery e2e steady; do
  "$bin/python" -m pytest -q "tests/$folder"
done
