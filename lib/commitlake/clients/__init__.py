"""The clients of services and readers: producers, consumers, a gateway, and commits of Delta tables as transactions.

Begin with `producer/` or `consumer/`. Only functions that take a session need Spark. Names and errors are public.
"""
