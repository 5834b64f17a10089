"""What services and readers use: producers, consumers, and commits of Delta tables as transactions."""
