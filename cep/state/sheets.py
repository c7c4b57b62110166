"""Named columns of different lengths, with a format version ↔ bytes.

    one record batch of one row (columnar/codec.py); every column is a list, so lengths may differ
    metadata: KIND → JSON with the format, and further values of the writer

Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from cep.base.errors import StateFormatError
from cep.columnar.codec import decode_table, encode_table

_BOUNDS = struct.Struct("<qq")


def encode_sheet(
    kind: str, about: Mapping[str, Any], columns: Mapping[str, pa.Array], *, compressed: bool = False
) -> bytes:
    """Return the columns as bytes; `about` has the `format`."""
    arrays = [_row(column) for column in columns.values()]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={kind: json.dumps(about)})
    return encode_table(pa.RecordBatch.from_arrays(arrays, schema=schema), compressed=compressed)


def _row(column: pa.Array) -> pa.Array:
    """Return the column as the one row of a list column.

    It is made from buffers: pages are small and many, and Arrow is slow to take Python's lists.
    """
    bounds = pa.py_buffer(_BOUNDS.pack(0, len(column)))
    return pa.LargeListArray.from_buffers(pa.large_list(column.type), 1, [None, bounds], children=[column])


def decode_sheet(kind: str, formats: Sequence[int], data: bytes) -> tuple[dict[str, Any], dict[str, pa.Array]]:
    """Decode the bytes of `encode_sheet` to (description, arrays). Arrays point into `data` if it is not compressed.

    `formats` are the versions that are accepted. Raises: StateFormatError for another format, StateCorruptError for
    bytes that fail their checksum.
    """
    table = decode_table(data)
    about = json.loads((table.schema.metadata or {}).get(kind.encode(), b"{}"))
    if about.get("format") not in formats:
        raise StateFormatError(
            f"a {kind} has format {about.get('format')}, this build reads {formats[0]}; "
            "start from an empty checkpoint directory, or with the build that wrote it"
        )
    return about, {name: table.column(number).values for number, name in enumerate(table.schema.names)}
