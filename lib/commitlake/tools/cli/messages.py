"""The work of the commands that send a message and read a topic: for a first try, and for scripts."""

from __future__ import annotations

import base64
from typing import Any

from commitlake.clients.consumer import consume as consumed
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.producer.default import DefaultMQProducer
from commitlake.clients.producer.message import Message
from commitlake.config import Config
from commitlake.config.terminal import json_line
from commitlake.tools.cli import output
from commitlake.tools.cli.questions import FOUND, NOTHING

_GROUP = "commitlake-send"
_NAMES = ("visible_at", "position", "message_id", "transaction_id", "tags", "keys", "properties")


def send(settings: Config, message: Message) -> int:
    """Send a normal message, or one with a delay."""
    with DefaultMQProducer.from_conf(settings, _GROUP) as producer:
        sent = producer.send(message)
    waits = "when its delay has ended" if sent.recall_handle else "within some seconds"
    print(f"sent {sent.msg_id}; {message.topic} shows it {waits}")
    return FOUND


def consume(
    settings: Config, topic: str, group: str, tags: str | None, where: str | None, limit: int | None, follow: bool
) -> int:
    """Print the messages of a topic that a group has not done, one JSON object a line, and note each as done."""
    count = 0
    with consumed.consume(settings, topic, group=group, tags=tags, where=where, follow=follow) as messages:
        for message in messages:
            print(json_line(_told(message)), flush=True)
            message.done()
            count += 1
            if count == limit:
                break
    return FOUND if count else NOTHING


def _told(message: ReceivedMessage) -> dict[str, Any]:
    found = {name: output.text(getattr(message, name)) for name in _NAMES}
    try:
        return found | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return found | {"body_base64": base64.b64encode(message.body).decode()}
