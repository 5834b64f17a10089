"""A bucket on this machine, by moto's S3 API, and Spark with Hadoop's s3a and Delta's log store of DynamoDB for it.

moto has many dependencies, so it does not come with this project: the first test makes an environment in the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.cluster import HOST
from tests.support.killing import ROOT, kill

from commitlake.errors import SetupError
from commitlake.spark import runtime

MOTO = ("moto[s3,dynamodb]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.4.1"
AWS_SDK = "com.amazonaws:aws-java-sdk-dynamodb:1.12.262"
LOG_STORE = "io.delta:delta-storage-s3-dynamodb:4.3.1"
LOG_STORE_JAR = "COMMITLAKE_TEST_S3_LOG_STORE"
"""Variable that names the jar of `LOG_STORE` where no Maven repository in reach has it."""
REGION = "eu-central-1"
_REGIONS = (
    "<XML><Regions><Region><Name>{region}</Name><Domain>amazonaws.com</Domain><Endpoint><ServiceName>dynamodb"
    "</ServiceName><Http>true</Http><Https>true</Https><Hostname>{host}</Hostname></Endpoint></Region></Regions></XML>"
)


@dataclass(frozen=True)
class Bucket:
    """A bucket, what a user has in his environment, and what he gives to Spark."""

    address: str
    environment: dict[str, str]
    spark_args: str


@contextmanager
def bucket(place: Path) -> Iterator[Bucket]:
    """A bucket of a server that is gone when the test is over. Skips where something can't be had."""
    jars = _jars()
    with (place / "moto.log").open("w") as log:
        server = subprocess.Popen(
            [str(_python()), str(ROOT / "tests" / "support" / "s3_server.py")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline() or "{}")
        assert ports, (place / "moto.log").read_text()[-4_000:]
        endpoint = f"http://{HOST}:{ports['s3']}"
        _create(f"{endpoint}/lake")
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        environment = {**keys, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": endpoint}
        yield Bucket("s3a://lake", environment, _spark_args(place, jars, f"{HOST}:{ports['dynamodb']}"))
    finally:
        kill(server)


def _spark_args(place: Path, jars: list[str], dynamodb: str) -> str:
    """What `conf/s3.yaml` says, and where DynamoDB is: the log store asks AWS's list of regions."""
    regions = place / "regions.xml"
    regions.write_text(_REGIONS.format(region=REGION, host=dynamodb))
    java = f"-Dcom.amazonaws.regions.RegionUtils.fileOverride={regions} -Dcom.amazonaws.sdk.disableCertChecking=true"
    store = "io.delta.storage.S3DynamoDBLogStore"
    region = f"spark.{store}.ddb.region={REGION}"
    return (
        f"--jars {','.join(jars)} --conf spark.delta.logStore.s3a.impl={store} --conf {region} "
        f"--driver-java-options '{java}'"
    )


def _create(address: str) -> None:
    """By a bare request: moto tells services apart by the signature, and looks at no more of it."""
    signed = f"AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=none"
    headers = {"Authorization": signed, "Content-Type": "text/xml"}
    where = f"<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>"
    with urllib.request.urlopen(urllib.request.Request(address, where.encode(), headers, method="PUT")):
        pass


def _jars() -> list[str]:
    given = os.environ.get(LOG_STORE_JAR)
    try:
        store = [given] if given else runtime.jars([LOG_STORE])
        return [*runtime.jars([HADOOP_AWS]), *runtime.jars([AWS_SDK]), *store]
    except SetupError as error:
        pytest.skip(f"no jars for S3 with an atomic log store ({LOG_STORE_JAR} may name a jar): {str(error)[:200]}")


def _python() -> Path:
    """The Python of an environment with moto, made once in the user's cache."""
    place = runtime.cached_file("moto-{}", *MOTO)
    python = place / "bin" / "python"
    if not python.exists():
        partial = place.with_suffix(f".{os.getpid()}")
        pip = [str(partial / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(partial)], capture_output=True, check=True)
            subprocess.run([*pip, *MOTO], capture_output=True, check=True)
            partial.rename(place)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            pytest.skip(f"no environment with moto: {error}")
    return python
