"""Spark around the data flow: session, submit, process, checkpoints, frames.

Begin with `session.py`, which has each setting with its reason. Nothing here knows of messages or tables.
"""
