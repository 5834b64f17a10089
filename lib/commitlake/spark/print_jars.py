"""Run by spark-submit with `--packages`: prints where Ivy has put their jars. See `commitlake.spark.runtime.jars`."""

from __future__ import annotations

from pyspark.java_gateway import launch_gateway

gateway = launch_gateway()  # type: ignore[no-untyped-call]
print("jars:" + gateway.jvm.java.lang.System.getProperty("spark.jars"))
