"""RocketMQ's tag expression: tags joined by `||`; None, an empty text or `*` stand for all."""

from __future__ import annotations


def tags_of(expression: str | None) -> list[str] | None:
    """The tags, None for all."""
    return None if expression in (None, "", "*") else [tag.strip() for tag in str(expression).split("||")]
