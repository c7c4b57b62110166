"""Events that are wanted whole → a table of all their columns, and the events decoded, in the same order.

Files are read once. What the table makes of texts has lost their zones, so decoding reads the texts as the verbs do.
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
from cep.columnar.decode import Decoded, concat_decoded, decode_table
from cep.columnar.file_form import FileForm
from cep.columnar.shown import shown_row
from cep.sources.whole_table import joined_tables, read_whole


@dataclass(frozen=True, slots=True)
class Whole:
    """Events with all their columns. `decode` gives them as rules read them, row by row those of the table."""

    frame: Frame
    table: pa.Table
    decode: Callable[[Schema, Naming], Decoded]


def open_whole(events: Any, form: FileForm) -> Whole:
    """See a frame, or read the files at paths. Raises: UsageError, SourceError."""
    paths = paths_of(events)
    if paths is None:
        frame = open_frame(events)
        table = frame.whole()  # once: a query may give its rows in another order next time
        return Whole(frame, table, partial(_decode_frame, table))
    files = [file for path in paths for file in read_whole(path, form)]
    table = joined_tables([file.table for file in files], ", ".join(map(str, paths)))

    def decode(schema: Schema, naming: Naming) -> Decoded:
        mapping = naming.of_records()
        check_paths(paths, schema, mapping)
        return concat_decoded(schema, [file.decode(schema, mapping) for file in files])

    frame = open_frame(table)
    return Whole(frame, frame.whole(), decode)


def _decode_frame(table: pa.Table, schema: Schema, naming: Naming) -> Decoded:
    fields = events_table(open_frame(table), schema, naming)
    return decode_table(schema, fields, partial(shown_row, fields), naming.values(schema))
