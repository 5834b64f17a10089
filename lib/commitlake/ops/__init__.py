"""What people on call use: questions to the ledger, and commands of administrators."""
