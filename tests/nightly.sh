#!/usr/bin/env bash
# What takes too long for every change, some hours on 2 cores: all tests marked `soak`, a small whole on other Sparks, then 200
# rounds of all kinds of faults, kills at random writes among them, with every row compared after each.
# Fails when one of them does.
# SEED repeats a night's kills and faults; each night has another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./spark-submit.sh --set-up dev
python=.venv/bin/python
failed=0

echo "== soak"
for folder in e2e recovery spark property; do # one JVM for all keeps too much: the largest batch did not fit any more
  "$python" -m pytest -q -m soak "tests/$folder" || failed=1
done
echo "== other versions of Spark"
SPARK=4.1.4 DELTA=4.4.0 tests/versions.sh || failed=1
SPARK=4.2.0 DELTA=4.4.0 tests/versions.sh || failed=1
echo "== a campaign of faults"
"$python" -m tests.recovery.test_campaign --rounds 200 --seed "${SEED:-$(date +%Y%m%d)}" || failed=1
exit "$failed"
