"""The commands that send a message and read a topic: for a first try, and for scripts."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlake.config import Config
from commitlake.config.terminal import json_line
from commitlake.tools.cli import output
from commitlake.tools.cli.options import Group, Tags, Topic, Where, command, flag, optional, with_address
from commitlake.tools.cli.output import FOUND, NOTHING

if TYPE_CHECKING:
    from commitlake.clients.consumer.message import ReceivedMessage

_GROUP = "commitlake-send"
_NAMES = ("visible_at", "position", "message_id", "transaction_id", "tags", "keys", "properties")


@command
def send(
    settings: Config,
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="BODY", help="Sent as UTF-8.")],
    tags: str | None = optional("--tags", "TAG", "What consumers filter by."),
    keys: str | None = optional("--keys", "KEYS", "Business keys."),
    delay: str | None = optional("--delay", "TIME", "How much later: 10s, 3h."),
) -> None:
    """Send a message without a transaction.

    For a first try, and for scripts. Needs no Spark.
    """
    from commitlake.clients.producer.default import DefaultMQProducer
    from commitlake.clients.producer.message import Message

    message = Message(topic, body, tags=tags, keys=keys, delay_seconds=delay)
    with DefaultMQProducer.from_conf(with_address(settings), _GROUP) as producer:
        sent = producer.send(message)
    waits = "when its delay has ended" if sent.recall_handle else "within some seconds"
    print(f"sent {sent.msg_id}; {message.topic} shows it {waits}")


@command
def consume(
    settings: Config,
    topic: Topic,
    group: Group,
    tags: Tags = None,
    where: Where = None,
    limit: int | None = optional("--limit", "N", "End after N messages.", min=1),
    follow: bool = flag("--follow", "Wait for new messages, until Ctrl-C."),
) -> int:
    """Print a group's new messages, as JSON lines.

    A message is done once it is printed. Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.clients.consumer import consume as consumed

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
