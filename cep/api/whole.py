"""Events with all their columns → a table, and the decoded events, in the same order.

Files are read once. The table's times have lost their zones, so decoding reads the texts as the verbs do.
Tested by: tests/api/test_features.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from cep.api.events import check_paths, paths_of
from cep.api.frames import Frame, events_table, open_frame
from cep.api.naming import Naming
from cep.base.schema import Schema
from cep.columnar.file_form import FileForm
from cep.sources.whole_table import DecodedRows, decoded_rows, joined_rows, joined_tables, read_whole


@dataclass(frozen=True, slots=True)
class Whole:
    """Events with all their columns. `decode` gives them as rules read them, with their rows in the table."""

    frame: Frame
    table: pa.Table
    decode: Callable[[Schema, Naming], DecodedRows]


def open_whole(events: Any, form: FileForm) -> Whole:
    """See a frame, or read the files at paths. Raises: UsageError, SourceError."""
    paths = paths_of(events)
    if paths is None:
        frame = open_frame(events)
        table = frame.whole()  # once: a query may give its rows in another order next time
        return Whole(frame, table, partial(_decode_frame, table))
    files = [file for path in paths for file in read_whole(path, form)]
    table = joined_tables([file.table for file in files], ", ".join(map(str, paths)))

    def decode(schema: Schema, naming: Naming) -> DecodedRows:
        mapping = naming.of_records()
        check_paths(paths, schema, mapping)
        return joined_rows(schema, [(file.decode(schema, mapping), file.table.num_rows) for file in files])

    frame = open_frame(table)
    return Whole(frame, frame.whole(), decode)


def _decode_frame(table: pa.Table, schema: Schema, naming: Naming) -> DecodedRows:
    fields = events_table(open_frame(table), schema, naming)
    return decoded_rows(schema, fields, naming.values(schema))
