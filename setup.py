"""Packaging of CommitLake: the wheel holds lib/commitlake only."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"
# A cluster brings its own Spark and Delta, so they are an extra. pyspark 4.3 has no Delta yet.
SPARK = ["pyspark>=4.0.1,<4.3", "delta-spark>=4.1,<4.5", "pandas>=2.2,<3", "pyarrow>=18"]
# What reads tables without Spark: consumers, and questions that people ask.
CONSUMER = ["deltalake>=1.6", "duckdb>=1.3", "pyarrow>=18", "sqlglot>=26"]
# Rules of `checks` that ask PostgreSQL, and producers whose local transactions are there.
POSTGRESQL = ["adbc-driver-postgresql>=1.2", "psycopg[binary]>=3.2,<4"]
# Databases at an address: the rule `database` of `checks`, and `commitlake database`. A driver is the application's.
DATABASE = ["sqlalchemy>=2,<3"]
# A faster wire for producers: librdkafka.
CONFLUENT = ["confluent-kafka>=2.6,<3"]
# RocketMQ 5's message definitions and stubs are in the package of its Python client.
GATEWAY = [*CONSUMER, "grpcio>=1.78", "rocketmq-python-client>=5.1.2,<5.2"]
# The traces of messages: the API only, an application chooses the SDK and where its spans go.
OPENTELEMETRY = ["opentelemetry-api>=1.30,<2"]
# Topics as Iceberg tables. It writes snapshots by parts of pyiceberg that a minor version may change.
ICEBERG = [*CONSUMER, "pyiceberg[sql-sqlite]>=0.12,<0.13"]
METRICS = [*CONSUMER, "prometheus-client>=0.20"]
NOTEBOOK = [*SPARK, *METRICS, *POSTGRESQL, *DATABASE, "matplotlib>=3.9"]
# The documents as a site.
DOCS = ["mkdocs-material>=9.7", "mkdocstrings[python]>=1.0"]
DEV = [
    *NOTEBOOK,
    *DOCS,
    "aiosqlite>=0.20",
    "asyncpg>=0.30",
    "build",
    "celery>=5.5",
    *CONFLUENT,
    *GATEWAY,
    *OPENTELEMETRY,
    *ICEBERG,
    "crc32c>=2.7",
    "chispa>=0.12",
    "databricks-bundles>=1",
    "django>=5.2",
    "fastapi>=0.115",
    "hypothesis>=6",
    "kubernetes-validate>=1.31",
    "mypy>=2",
    "opentelemetry-sdk>=1.30,<2",
    "pre-commit>=4",
    "pymysql>=1.1",
    "pyspark[connect]",
    "pytest>=9",
    "pytest-timeout>=2.4",
    "ruff>=0.17",
    "sqlalchemy[asyncio]>=2,<3",
    "types-PyYAML",
]

setup(
    name="commitlake",
    version=re.findall(r'__version__ = "(.+)"', (HERE / "lib/commitlake/protocol/version.py").read_text())[0],
    description="RocketMQ's transactional messages on Kafka, Spark and Delta Lake",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"": "lib"},
    packages=find_packages("lib"),
    package_data={"commitlake": ["py.typed", "**/*.properties", "**/*.css"]},
    install_requires=["kafka-python>=3.0,<4", "numpy>=1.26", "PyYAML>=6", "rich>=13", "typer>=0.12"],
    extras_require={
        "consumer": CONSUMER,
        "fast": ["crc32c>=2.7"],
        "confluent": CONFLUENT,
        "gateway": GATEWAY,
        "opentelemetry": OPENTELEMETRY,
        "iceberg": ICEBERG,
        "spark": SPARK,
        "postgresql": POSTGRESQL,
        "database": DATABASE,
        "all": [*SPARK, *METRICS, *POSTGRESQL, *DATABASE],
        "notebook": [*NOTEBOOK, "jupyterlab>=4.4"],  # which opens them; tests run them without
        "docs": DOCS,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["commitlake = commitlake.tools.cli.app:main"]},
)
