"""Maintenance deletes old rows, compacts small files, and deletes unused files.

Begin with `run.py`; `retention.py` says which rows may go. A transaction that is open, or may be resumed, never goes.
"""
