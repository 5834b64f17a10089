"""Run by spark-submit with Maven packages: prints where Ivy has put their jars. See `commitlake.spark.runtime.jars`."""

from __future__ import annotations

import sys

from pyspark.java_gateway import launch_gateway

jvm = launch_gateway().jvm  # type: ignore[no-untyped-call]
jvm.org.apache.spark.SparkConf()  # loads the classes with which the resolver logs
for package in sys.argv[1:]:
    found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(jvm.java.net.URI(f"ivy://{package}"))
    for number in range(found.size()):
        print("jar:" + found.apply(number))
