"""Events as a user hands them in, a frame or paths → the pieces that a replay reads, and the records of one key.

    frame ──frames.py──▶ table ─┐
                                ├─▶ Source ─▶ pieces, records of a key, columns of labels
    path, paths, wildcard ──────┘   as the verbs read them, and checked as they check them

Tested by: tests/api/test_match.py, tests/api/test_forms.py, tests/api/test_features.py, tests/api/test_rejected.py
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from cep.analysis.labels import Labels, ids_and_column, labels_of_column, read_labels, values_at
from cep.api.frames import Forms, Frame, Naming, ToFrame, events_table, known_column, open_frame, texts_for_mixed
from cep.base.errors import RejectedRecordsError, UsageError
from cep.base.limits import AHEAD_MS_DEFAULT, DEDUP_MS_DEFAULT
from cep.base.schema import Schema
from cep.columnar.decode import KeyDomain
from cep.columnar.mapping import AS_WRITTEN, FieldMapping, FileForm, check_fields, path_of_text, view_of
from cep.columnar.shown import RowTexts
from cep.columnar.times import counting_skipped
from cep.lang.diagnostics import did_you_mean
from cep.model.setting_types import length_ms
from cep.runners.output import Replayed
from cep.sources.check import check_records
from cep.sources.files import KeyRecords, key_of_table, read_key
from cep.sources.inputs import Records, given_inputs
from cep.sources.pieces import Period, Piece, Pieces, period_of, pieces_of_table, read_pieces
from cep.sources.tables import DecodedRows, decoded_rows, joined_rows, joined_tables, read_whole
from cep.step.rejections import Rejections, rejections_of

_OF_HISTORY = ("since", "until", "dedup", "strict", "to_the_end")
ReadKey = Callable[[Schema, KeyDomain, str], KeyRecords]  # from event types, key fields and a key to its records
_WORDS = (  # of messages: flags of the command line, and the same for Python
    (re.compile(r"--(delimiter|quote|encoding|decimal|thousands)\b"), r"\1="),
    (re.compile(r"flags such as"), "arguments such as"),
    (re.compile(r"--columns (\S+)=PATH"), r'columns={"\1": …}'),
    (re.compile(r"--time-unit s \(or ms, if it is\)"), 'time_unit="s", or "ms" if it is'),
    (re.compile(r"--time-zone UTC, or another such as Europe/Berlin"), 'tz="UTC" or tz="Europe/Paris"'),
)


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the records of one key, or all records in pieces. Event ids are remembered for `dedup_ms`. Events more than
    `ahead_ms` after now do not count; None: all count."""

    of_key: ReadKey
    pieces: Callable[[Schema], Pieces]
    dedup_ms: int = DEDUP_MS_DEFAULT
    ahead_ms: int | None = AHEAD_MS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(EventReader):
    """The events of a frame or of files. `to_frame` makes a frame of the caller's kind. `labels` reads a column of
    labels by its words, True for fraud. With `views`, a record is one event in each view, as of payer and payee."""

    to_frame: ToFrame
    labels: Callable[[Schema, str, Mapping[str, bool]], Labels]
    views: Callable[[Schema], tuple[str, ...]]

    def within(self, period: Period) -> Source:
        """Return the source without the events outside of a period."""
        return replace(
            self,
            pieces=lambda schema: period.cut(self.pieces(schema)),
            of_key=lambda schema, domain, key: period.cut_key(self.of_key(schema, domain, key)),
            dedup_ms=period.dedup_ms,
        )


class HistoryForms(Forms, total=False):
    """The forms of values, the period in which events count, for how long event ids are remembered, and whether a
    rejected record is an error."""

    since: str
    until: str
    dedup: str
    strict: bool


class ReplayForms(HistoryForms, total=False):
    """The same, and whether all windows close at the end of the history."""

    to_the_end: bool


def split_forms(forms: HistoryForms | ReplayForms) -> tuple[Forms, Period]:
    """Separate the forms of values from the period. Raises: UsageError for an invalid time."""
    written = {name: value for name, value in forms.items() if name not in _OF_HISTORY}
    to_the_end = bool(forms.get("to_the_end"))
    dedup_ms = length_ms("dedup", forms["dedup"]) if "dedup" in forms else DEDUP_MS_DEFAULT
    period = period_of(forms.get("since"), forms.get("until"), to_the_end=to_the_end, dedup_ms=dedup_ms)
    return cast("Forms", written), period


def paths_of(events: Any) -> tuple[Path, ...] | None:
    """Return the files and folders that are meant, each once; None for a frame. Raises: UsageError, SourceError."""
    if isinstance(events, str | Path):
        return given_inputs([Path(events)])
    if not isinstance(events, list | tuple) or not events or not all(isinstance(each, str | Path) for each in events):
        return None
    return given_inputs(map(Path, events))


def open_any(events: Any, form: FileForm = AS_WRITTEN) -> Frame:
    """View a frame, or the files at paths, as one `Frame`. Raises: UsageError, SourceError."""
    paths = paths_of(events)
    if paths is None:
        return open_frame(events)
    tables = [file.table for path in paths for file in read_whole(path, form)]
    return open_frame(joined_tables(tables, ", ".join(map(str, paths))))


def open_source(events: Any, naming: Naming) -> Source:
    """Make a source of a frame, or of files, read as the command line does. Raises: UsageError, SourceError."""
    paths = paths_of(events)
    if paths is None:
        return _source_of(open_frame(events), naming)
    mapping = naming.of_records()  # where and how the fields are in a record

    def pieces(schema: Schema) -> Pieces:  # all records, some at a time, for the threads of a replay
        check_paths(paths, schema, mapping)
        return read_pieces(paths, schema, mapping)

    def of_key(schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
        check_paths(paths, schema, mapping)
        return read_key(paths, schema, domain, key, mapping)

    return Source(
        of_key,
        pieces,
        to_frame=lambda table: table,  # for files: Arrow
        labels=lambda schema, column, words: read_labels(column, Records(paths, mapping), schema, words),
        views=lambda _: mapping.view_names,  # a record becomes one event in each view, as of payer and payee
    )


def check_paths(paths: Sequence[Path], schema: Schema, mapping: FieldMapping) -> None:
    """Refuse records that cannot be meant so, before anything runs. Raises: UsageError, SourceError."""
    check_fields(mapping, schema)
    try:
        for line in check_records(Records(tuple(paths), mapping), schema):
            sys.stderr.write(f"cep: {_in_python(line)}\n")
    except UsageError as error:
        raise type(error)(_in_python(str(error))) from error


def _in_python(message: str) -> str:
    for flag, argument in _WORDS:
        message = flag.sub(argument, message)
    return message


def _source_of(frame: Frame, naming: Naming) -> Source:
    """Make a source of a frame. With views, each row is several events, such as a payment sent and received."""

    def pieces(schema: Schema) -> Pieces:
        """Cut the events into pieces. The first piece counts local times that do not exist, as clocks skip an hour."""
        with counting_skipped() as skipped_counts:
            table = events_table(frame, schema, naming, keeps_string_views=True)
        row_text = RowTexts(table)

        def row_as_json(row: int) -> str:  # for the report of a record that is rejected
            if frame.row is not None:
                with suppress(OverflowError, ValueError, KeyError):  # Python does not support the time or the zone
                    return json.dumps(frame.row(row), default=str)
            return row_text(row)

        all_pieces = pieces_of_table(table, schema, row_as_json, naming.values(schema))
        return _with_skipped_times(all_pieces, sum(skipped_counts))

    def of_key(schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
        return key_of_table(events_table(frame, schema, naming), schema, domain, key, naming.values(schema))

    def labels(schema: Schema, column: str, words: Mapping[str, bool]) -> Labels:
        table, mapping = _with_column(frame, schema, naming, column), naming.values(schema)
        tables = [ids_and_column(table, schema, column, view) for view in mapping.views]
        read = labels_of_column(tables if mapping.has_views else [table], column, schema, words)
        sources = {view_of(name)[1]: source for name, source in (naming.columns or {}).items()}  # columns by field
        return replace(read, fields=tuple(name for name in schema.columns() if sources.get(name, name) == column))

    return Source(of_key, pieces, to_frame=frame.to_frame, labels=labels, views=lambda s: naming.values(s).view_names)


def _with_skipped_times(pieces: Pieces, count: int) -> Pieces:
    """Add local times that clocks skip, which were counted when the frame was opened, to the first piece."""

    def counted(piece: Piece) -> Piece:
        return replace(piece, decode=lambda: replace(piece.decode(), skipped_times=count))

    first = map(counted, islice(pieces.pieces, 1))
    return replace(pieces, pieces=chain(first, pieces.pieces)) if count else pieces


def _with_column(frame: Frame, schema: Schema, naming: Naming, column: str) -> pa.Table:
    """Return the events' columns and one more, by its name or its path into a nested column. Raises: UsageError."""
    if column not in frame.names:
        nested_names = [name for name in path_of_text(column)[:1] if name in frame.names]
        inner = values_at(frame.columns(nested_names), column) if nested_names else None
        if inner is not None:
            return events_table(frame, schema, naming).append_column(column, known_column(inner, column))
        raise UsageError(f"the events have no column `{column}`; {did_you_mean(column, frame.names, 'columns')}")
    table = events_table(frame, schema, naming)
    if column in table.column_names:
        return table
    labels = texts_for_mixed(frame.columns([column]))[column]
    return table.append_column(column, known_column(labels, column))


@dataclass(frozen=True, slots=True)
class Whole:
    """Events with all their columns. `decode` gives them as rules read them, with their rows in the table. It reads the
    texts of files as the verbs do, because times in the table have lost their zones."""

    frame: Frame
    table: pa.Table
    decode: Callable[[Schema, Naming], DecodedRows]


def open_whole(events: Any, form: FileForm) -> Whole:
    """Open a frame, or files, as a table and a function that makes events of it. Raises: UsageError, SourceError."""
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


class RejectedRecordsWarning(UserWarning):
    """Records of a history were set aside, or have a value that cannot be read. The text has the top reason."""


def warn_of_replay(replayed: Replayed, forms: ReplayForms) -> None:
    """Warn of the rejected records of a replay. Raises: RejectedRecordsError if the caller asks for it."""
    warn_of(rejections_of(replayed.counters, replayed.dead_letters), forms, 4)


def warn_of(rejections: Rejections, forms: HistoryForms | ReplayForms, stacklevel: int = 3) -> None:
    """Warn of rejected records, in the line of the caller. Raises: RejectedRecordsError if the caller asks for it."""
    if not rejections.rejected_count:
        return
    if forms.get("strict"):
        raise RejectedRecordsError(
            f"{rejections.summary()}; mend these records or leave them out, or go on without them by strict=False"
        )
    warnings.warn(f"{rejections.summary()}; strict=True makes this an error", RejectedRecordsWarning, stacklevel)
