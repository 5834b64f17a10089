"""A commit of Delta tables as the local transaction: no listener, the tables' logs answer."""
