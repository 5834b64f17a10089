#!/usr/bin/env bash
# The newest Spark that CommitLake runs on, in an environment of its own: the demo, which compares all it did at its end.
# SPARK and DELTA name other versions. Arguments go to the demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3.11}" -m venv "$place/venv"
grep -viE '^(pyspark|delta[_-]spark)==' constraints.txt >"$place/constraints.txt"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$place/constraints.txt" \
  --editable '.[all]' "pyspark==${SPARK:-4.2.0}" "delta-spark==${DELTA:-4.4.0}"
cd "$place"
"$place/venv/bin/commitlake" demo "$@"
