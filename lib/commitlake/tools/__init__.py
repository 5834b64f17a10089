"""What people run: the command, its questions, the audit, the report, the demo."""
