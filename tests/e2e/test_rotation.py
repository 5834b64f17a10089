"""A password and a certificate are changed while messages go through, as docs/how-to/secure.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import tables
from tests.support.running import Coordinator, coordinator
from tests.support.secured import PASSWORDS, Secured, jaas, make_server_certificate, secured_broker

from commitlake import DefaultMQProducer, Message

PREFIX = "rotated."
NEW = "an0ther-secret"


def shown(running: Coordinator, producer: DefaultMQProducer, body: str) -> None:
    """Sends a message, and waits until it is visible."""
    producer.send(Message("news", body), timeout=120_000)
    running.until(lambda: body.encode() in [row["body"] for row in tables.rows(running.warehouse, "topics/news")], 300)


def settings(secured: Secured, password: Path) -> dict[str, str]:
    options = {**secured.options("coordinator"), "sasl.jaas.config": f"file:{password}"}
    own = {f"kafka.options.{name}": value for name, value in options.items()}
    where = {"kafka.bootstrap_servers": secured.bootstrap_servers, "kafka.topic_prefix": PREFIX, "kafka.queues": "2"}
    return {**own, **where, "trigger_interval": "500ms"}


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_password_and_a_ca_are_changed_with_one_restart_of_the_coordinator(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(jaas("scram.Scram", "coordinator", PASSWORDS["coordinator"]) + ";")
    with secured_broker(tmp_path) as secured:
        secured.permit(PREFIX, "shop")
        where: dict[str, Any] = {"bootstrap_servers": secured.bootstrap_servers, "topic_prefix": PREFIX}
        given = settings(secured, password)
        with coordinator(tmp_path, **given) as running:
            running.ready()
            producer = DefaultMQProducer("shop", **where, options=secured.options("producer"))
            producer.start()
            shown(running, producer, "before")
            trusted = [secured.place / f"{name}.pem" for name in ("ca", "other")]
            trusted[0].write_text("".join(file.read_text() for file in trusted))
            running.stop()
        secured.change_password("coordinator", NEW)
        password.write_text(jaas("scram.Scram", "coordinator", NEW) + ";")
        with coordinator(tmp_path, **given) as running:
            running.ready()
            shown(running, producer, "new password")
            make_server_certificate(secured.place, "other")
            secured.broker.restart()
            shown(running, producer, "new certificate")
            trusted[0].write_text(trusted[1].read_text())
            shown(running, producer, "new CA alone")
            producer.shutdown()
