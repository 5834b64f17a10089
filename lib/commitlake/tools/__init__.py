"""The command that people run: its questions, the audit, the report, the demo.

Begin with `cli/app.py`. The output of a command is public, and its exit codes are in docs/how-to/run.md.
"""
