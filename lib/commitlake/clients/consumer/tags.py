"""The tags that a group wants, as RocketMQ's expression, tags joined by `||`, or as a list of tags."""

from __future__ import annotations

from commitlake.errors import ConsumerError

Tags = str | list[str] | tuple[str, ...]


def tags_of(given: Tags | None) -> list[str] | None:
    """The tags as a list; None for all, which None, an empty text or `*` mean.

    Raises:
        ConsumerError: no tag is given, or something else than tags.
    """
    if given is None or given in ("", "*"):
        return None
    if not isinstance(given, str | list | tuple) or not all(isinstance(each, str) for each in given):
        raise _refused(given)
    tags = [tag for each in given.split("||") if (tag := each.strip())] if isinstance(given, str) else list(given)
    if not tags or any(tag != tag.strip() or tag in ("", "*") or "||" in tag for tag in tags):
        raise _refused(given)
    return [str.__str__(tag) for tag in tags]  # a member of a string Enum becomes its value


def _refused(given: object) -> ConsumerError:
    allowed = "give a tag, tags joined by ||, such as 'paid || shipped', or a list of tags; None or * for all"
    return ConsumerError(f"tags: {given!r:.200} is not allowed; {allowed}")
