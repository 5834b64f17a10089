"""What people on call use: reports from the ledger, the audit, and commands of administrators."""
