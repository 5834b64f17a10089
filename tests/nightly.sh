#!/usr/bin/env bash
# What takes too long for every change, some hours on 2 cores: all tests marked `soak`, the demo on the newest Spark, then a
# coordinator that is killed 50 times at random, with every row compared in the end, and 200 rounds of all kinds of faults.
# Fails when one of them does.
# SEED repeats a night's kills and faults; each night has another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./spark-submit.sh --set-up dev
python=.venv/bin/python
failed=0

echo "== soak"
"$python" -m pytest -q -m soak || failed=1
echo "== the newest Spark"
tests/newest_spark.sh || failed=1
echo "== random kills"
"$python" -m tests.recovery.random_kills --kills 50 --seed "${SEED:-$(date +%Y%m%d)}" || failed=1
echo "== a campaign of faults"
"$python" -m tests.recovery.campaign --rounds 200 --seed "${SEED:-$(date +%Y%m%d)}" || failed=1
exit "$failed"
