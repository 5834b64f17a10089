#!/usr/bin/env bash
# A small whole on other versions: the demo, kills, the README and the notebooks, in a copy of this tree whose constraints
# name another Spark. PYTHON and JAVA_HOME choose the others. Arguments go to pytest, in place of these tests.
#   SPARK=4.1.4 DELTA=4.4.0 PYTHON=python3.12 tests/versions.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$copy"
cd "$copy"
export XDG_CACHE_HOME=$copy/cache # its archive of classes, 200 MB, is of no use to others
unset SPARK_HOME
sed -i -E "s/^pyspark==.*/pyspark==${SPARK:-4.2.0}/; s/^delta_spark==.*/delta_spark==${DELTA:-4.4.0}/; /^py4j==/d" constraints.txt
./spark-submit.sh --set-up dev
[[ $# -gt 0 ]] || set -- tests/e2e/test_demo.py tests/e2e/test_readme.py tests/e2e/test_notebook.py \
  tests/recovery/test_coordination_recovery.py::test_kills_between_the_commits_of_topics_show_each_message_once
.venv/bin/python -c 'import sys; from importlib.metadata import version as of
from commitlake.spark import runtime
print("== Python", sys.version, "Spark", of("pyspark"), "Delta", of("delta-spark"), *runtime.packages())'
.venv/bin/python -m pytest -q "$@"
