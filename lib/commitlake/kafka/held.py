"""What Kafka holds right now, asked for in each round over one connection that stays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress

from kafka import KafkaAdminClient

from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka.admin_client import connect
from commitlake.kafka.topics import latest_offsets


class Held:
    """Asks where the logs end; used by one thread at a time.

    Args:
        config: says where Kafka is.
        sources: topics without the prefix.
    """

    def __init__(self, config: Config, sources: Sequence[str]) -> None:
        self._config, self._sources = config, sources
        self._stack = ExitStack()
        self._client: KafkaAdminClient | None = None

    def ends(self) -> dict[str, dict[int, int]]:
        """The next offset that each partition gets, by source.

        Raises:
            KafkaError: Kafka is out of reach.
        """
        try:
            client = self._client = self._client or self._stack.enter_context(connect(self._config))
            return latest_offsets(client, self._config, self._sources)
        except KafkaError:
            self.close()
            raise
        except Exception as error:  # kafka-python also raises what ended its thread
            self.close()
            msg = f"asking Kafka at {self._config.kafka.bootstrap_servers} for its offsets failed: {error}"
            raise KafkaError(msg) from error

    def close(self) -> None:
        """Ends the connection; the next question opens another."""
        self._client = None
        with suppress(Exception):  # it may be what failed
            self._stack.close()
