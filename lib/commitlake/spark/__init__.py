"""Spark around the pipeline: session, submit, process, checkpoints."""

from __future__ import annotations
