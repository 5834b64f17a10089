"""Access to S3, given once, by AWS's variables in the environment.

Spark passes AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_ENDPOINT_URL to s3a by itself.
deltalake, through which DuckDB reads too, takes them and AWS_REGION. Where the endpoint is not AWS's own, both need
further options, which follow from the endpoint; this file has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from commitlake.errors import ArgumentError

_ENDPOINT = "AWS_ENDPOINT_URL"


def spark_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of Spark for an endpoint that is not AWS's: there buckets are part of the path, not of host names."""
    return {"spark.hadoop.fs.s3a.path.style.access": "true"} if environment.get(_ENDPOINT) else {}


def storage_options(
    given: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str] | None:
    """The `storage_options` of deltalake; None for none.

    Args:
        given: the caller's options, which win; or what makes them each time anew, as of credentials that expire.
        environment: variables. An endpoint with `http://` there was chosen without TLS; deltalake would reject it
            without AWS_ALLOW_HTTP.

    Raises:
        ArgumentError: `given` is no map of texts to texts.
    """
    options = {} if given is None else given() if callable(given) else given
    if not isinstance(options, Mapping) or not all(isinstance(each, str) for pair in options.items() for each in pair):
        msg = "storage_options: give a map of deltalake's options to texts, such as {'AWS_REGION': 'eu-central-1'}"
        raise ArgumentError(msg)
    plain = environment.get(_ENDPOINT, "").lower().startswith("http://")
    return {**({"allow_http": "true"} if plain else {}), **options} or None
