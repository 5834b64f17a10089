"""A question to a service on HTTP ends in time, however slowly the answer comes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from commitlake.errors import AnswerError
from commitlake.reading.web import asked

_APART_S = 0.1
_FEW = b'{"schema": "x"}'
_ANSWER = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n"
_SLOW = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 50),
    "body": (_ANSWER % (b"200 OK", 1_000), _FEW + b" " * 1_000),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 500),
    "a body of unknown length": (b"HTTP/1.0 200 OK\r\n\r\n", _FEW + b" " * 1_000),
}


@contextmanager
def dripping(at_once: bytes, then: bytes) -> Iterator[str]:
    """A server that sends the second part byte by byte; its URL."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as caller:
            caller.recv(10_000)
            caller.sendall(at_once)
            for byte in then:
                if ended.wait(_APART_S):
                    return
                caller.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


def took_s(ask: Callable[[], object]) -> float:
    begun = time.monotonic()
    with pytest.raises(AnswerError) as told:
        ask()
    assert "timed out" in str(told.value) or "503" in str(told.value)
    return time.monotonic() - begun


@pytest.mark.parametrize("parts", _SLOW.values(), ids=_SLOW.keys())
def test_an_answer_byte_by_byte_is_given_up_in_time(parts: tuple[bytes, bytes]) -> None:
    with dripping(*parts) as url:
        assert 0.4 < took_s(lambda: asked(url, 0.5)) < 2


def test_an_error_byte_by_byte_is_told_in_time() -> None:
    with dripping(_ANSWER % (b"503 Busy", 1_000), b"." * 1_000) as url:
        assert took_s(lambda: asked(url, 0.5)) < 2


def test_an_answer_that_comes_slowly_and_in_time_is_taken() -> None:
    with dripping(_ANSWER % (b"200 OK", len(_FEW)), _FEW) as url:
        assert asked(url, 5) == {"schema": "x"}
