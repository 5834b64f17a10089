"""The configuration, and what it names: places, secrets, what a terminal shows.

Begin with `config.py`: each key is a field there, or in one of its sections, `sections.py`.
"""

from __future__ import annotations

from commitlake.config.config import (
    Conf,
    Config,
    from_mapping,
    given_values,
    load,
    of,
)
from commitlake.config.sections import (
    CatalogConfig,
    GatewayConfig,
    KafkaConfig,
    TopicsConfig,
    TransactionConfig,
)

__all__ = [
    "CatalogConfig",
    "Conf",
    "Config",
    "GatewayConfig",
    "KafkaConfig",
    "TopicsConfig",
    "TransactionConfig",
    "from_mapping",
    "given_values",
    "load",
    "of",
]
