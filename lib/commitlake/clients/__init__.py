"""What services and readers use: producers, consumers, a gateway, and commits of Delta tables as transactions.

Begin with `producer/` or `consumer/`. No Spark but where a session is handed over; names and errors are public.
"""
