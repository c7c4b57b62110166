"""Events → Avro records, as a producer without a registry writes them: without a prefix."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro


def plain_avro(schema: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return a record for each event."""
    parsed = fastavro.parse_schema(dict(schema))
    values = []
    for event in events:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, event)
        values.append(file.getvalue())
    return values
