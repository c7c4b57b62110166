"""What a savepoint keeps beside its entries ↔ JSON: positions, totals, what is the same for all key groups, alerts.

Tested by: tests/runners/embedded/test_savepoint.py
"""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, StateFormatError
from cep.runners.output import encode_alerts

PAYLOAD_FORMAT = 1


def packed_alerts(alerts: pa.Table) -> str:
    """Alerts as a payload holds them."""
    return base64.b64encode(encode_alerts(alerts)).decode()


def read_payload(data: bytes) -> dict[str, Any]:
    """What a savepoint keeps beside its entries. Raises: StateCorruptError, StateFormatError."""
    try:
        payload: dict[str, Any] = orjson.loads(data)
        found = payload["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StateCorruptError(f"the savepoint's payload of {len(data)} bytes is not ours ({error!r})") from error
    if found != PAYLOAD_FORMAT:
        raise StateFormatError(
            f"the savepoint was written in format {found}, this build reads {PAYLOAD_FORMAT}; restore it with the "
            "build that wrote it"
        )
    return payload
