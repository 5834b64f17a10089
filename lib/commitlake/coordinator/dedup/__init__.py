"""Deduplication by name: a topic of `topics.dedup` shows a name once in its window (contract 4.12)."""
