"""A package that is not installed → which extra of cep brings it.

    pip install cep           matches frames and files, tests patterns, replays, measures
    pip install 'cep[all]'    everything

Tested by: tests/base/test_extras.py
"""

from __future__ import annotations

from cep.base.errors import UsageError

# By import name. `pyproject.toml` has the packages of each extra.
EXTRAS = {
    **dict.fromkeys(("pyspark", "py4j", "pandas"), "spark"),
    **dict.fromkeys(
        ("confluent_kafka", "fastavro", "authlib", "attr", "attrs", "cachetools", "certifi", "httpx2", "google"),
        "kafka",
    ),
    "psycopg": "postgres",
    "s3fs": "s3",
    **dict.fromkeys(("pygls", "lsprotocol"), "editor"),
    **dict.fromkeys(("jinja2", "vl_convert"), "charts"),
    "opentelemetry": "otel",
    "deltalake": "lake",
}


def missing_extra(error: ModuleNotFoundError) -> UsageError | None:
    """Return the extra to install for a missing package; None if it belongs to no extra, which is a bug."""
    package = (error.name or "").split(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return UsageError(
        f"this needs the package {package}, which is not installed: pip install 'cep[{extra}]', or 'cep[all]' for all "
        "that cep can do"
    )
