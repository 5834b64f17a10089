"""Old rows go, small files become few, unused files vanish.

Begin with `run.py`; `retention.py` says which rows may go. What is open, or may be resumed, never goes.
"""
