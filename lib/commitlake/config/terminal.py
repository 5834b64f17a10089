"""Text that others have chosen, on a terminal: ids, keys and topics are the producers'."""

from __future__ import annotations

import codecs
import io
import json
import shlex
from collections.abc import Callable, Mapping


def escape_other_letters(stream: object) -> None:
    """Let a stream write letters that its encoding lacks as JSON's escapes, in place of a UnicodeEncodeError."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ESCAPES)


def printable(text: str) -> str:
    r"""The text with each control character as an escape, such as `\x1b`: a terminal obeys ESC, also one in an id."""
    return _with_escapes(text, lambda letter: letter.encode("unicode_escape").decode())


def lines(text: str) -> str:
    """Each line of a text as by `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1 record` and `2 records`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def json_line(row: Mapping[str, object]) -> str:
    """A JSON object on one line, with other letters as they are and control characters as JSON's escapes."""
    return _with_escapes(json.dumps(row, ensure_ascii=False), lambda letter: json.dumps(letter)[1:-1])


def shell_word(text: str) -> str:
    """The text as one word of a shell's command line, which can be pasted: bash and zsh read the same text back."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{octet:02x}" for octet in text.encode("utf-8", "surrogatepass")) + "'"


def _with_escapes(text: str, escape: Callable[[str], str]) -> str:
    return text if text.isprintable() else "".join(each if each.isprintable() else escape(each) for each in text)


def _escaped_where(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPES = "commitlake-escapes"
codecs.register_error(_ESCAPES, _escaped_where)
