"""What tests share.

Their sessions interpret expressions: to make and compile code for some tens of rows takes a quarter of a start's CPU.
What is started by `./spark-submit.sh` compiles, as for users.
"""

from __future__ import annotations

import os

_INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
_SETTINGS = " ".join(f"--conf {name}={value}" for name, value in _INTERPRETED.items())
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"{_SETTINGS} pyspark-shell")  # of each JVM that Python starts
