"""What people run: the command, its questions, the audit, the report, the demo.

Begin with `cli/app.py`. What a command prints is public, and its exit codes stand in docs/how-to/run.md.
"""
