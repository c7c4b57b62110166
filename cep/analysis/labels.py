"""A column of the events, or a file of labels → a table of labels in one form.

    event_id, or field and key with from_ms and to_ms: the labelled events
    label, kind, episode, amount, reported_ms

A label belongs to one event, or to all events of a key between two times. Labels of the same episode are one fraud. A
key is in a column `key`, or in a column with the name of the field. The words of labels mean honest or fraud:

    honest    empty, 0, false, no, none, legit, genuine, normal, OK, not fraud …
    fraud     1, true, yes, fraud, bad …; a word such as stolen_card is its kind
    unknown   `--label-words review=honest`, or `*=fraud` for all others

A wrong guess turns each figure around, so the user is asked about unknown words. F alone is false only next to T or
true: next to G it may be fraud.
Tested by: tests/analysis/test_labels.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pj
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cep.base.errors import UnreadableError, UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT
from cep.columnar.mapping import FieldMapping, array_at, path_of_text
from cep.columnar.texts import different_texts, encoded
from cep.columnar.times import INT96_UNIT, has_zone, times_us
from cep.sources.inputs import Records, files_of, kind_of
from cep.sources.tables import open_table, read_json_table, typed

HONEST = (
    "no", "n", "f", "false", "nan", "none", "null", "n a", "na", "legit", "legitimate", "genuine", "normal", "ok",
    "okay", "good", "honest", "benign", "clean", "licit", "negative", "not fraud", "no fraud", "non fraud", "nonfraud",
    "notfraud",
)  # fmt: skip
FRAUD = ("yes", "y", "t", "true", "fraud", "fraudulent", "bad", "positive", "illicit")
# A label with one of these words is a kind of fraud, such as stolen_card.
KIND_WORDS = frozenset({
    "fraud", "fraudulent", "stolen", "theft", "scam", "phishing", "laundering", "takeover", "counterfeit", "chargeback",
    "mule", "skimming", "illicit",
})  # fmt: skip
ALL_OTHERS = "*"
_NEGATIONS = {"no", "not", "non"}
_ZERO = re.compile(r"[+-]?0+(\.0*)?")
_ONE = re.compile(r"\+?0*1(\.0*)?")
_SIGNS_AND_SPACES = re.compile(r"[^a-z0-9]+")
_SHOWN = 8
_WORDS_MAX = 1_000  # a column with more different texts has no labels


def label_words(pairs: Sequence[str], flag: str = "--label-words") -> dict[str, bool]:
    """Read WORD=fraud and WORD=honest: True for fraud. Raises: UsageError."""
    words: dict[str, bool] = {}
    for pair in pairs:
        word, sign, verdict = pair.rpartition("=")
        if not sign or verdict.strip() not in ("fraud", "honest"):
            raise UsageError(f"{flag} {pair}: write WORD=fraud or WORD=honest, and {ALL_OTHERS}=fraud for all others")
        is_fraud = verdict.strip() == "fraud"
        if words.setdefault(word.strip().lower(), is_fraud) != is_fraud:
            raise UsageError(f"{flag} {pair}: the word means the other verdict, too; say it once")
    return words


def verdicts(labels: pa.Array, words: Mapping[str, bool], name: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Decide which labels mean fraud, and which of these name a kind of fraud: bool[N] each. A null is honest. `words`
    are the user's answers, ALL_OTHERS for other words. Raises: UsageError with the unknown words of `name`."""
    coded = encoded(labels.cast(TEXT))
    codes = np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    texts = coded.dictionary.slice(0, _WORDS_MAX + 1).to_pylist()
    label_values = [_fraud_verdict(text, words) for text in texts]
    plain_words = {text.strip().lower() for text in texts}
    if "f" in plain_words and "f" not in words and not plain_words & {"t", "true"}:  # F may mean fraud: ask
        answer = words.get(ALL_OTHERS)
        label_values = [
            answer if text.strip().lower() == "f" else value for text, value in zip(texts, label_values, strict=True)
        ]
    unknown = [code for code, verdict in enumerate(label_values) if verdict is None]
    if unknown or len(coded.dictionary) > _WORDS_MAX:
        counts = np.bincount(codes[codes >= 0], minlength=len(coded.dictionary))
        raise UsageError(_question(name, [(texts[code], int(counts[code])) for code in unknown]))
    is_fraud = np.array([*map(bool, label_values), False], np.bool_)  # the last entry is for null, code -1
    names_kind = np.array(
        [*(bool(v) and not _says_only_fraud(text) for text, v in zip(texts, label_values, strict=True)), False]
    )
    return is_fraud[codes], names_kind[codes]


def _fraud_verdict(text: str, words: Mapping[str, bool]) -> bool | None:
    """Return True for fraud, False for honest, None for an unknown word. `words` are the user's answers."""
    label = text.strip().lower()
    if label in words:
        return words[label]
    plain = _SIGNS_AND_SPACES.sub(" ", label).strip()
    if not label or plain in HONEST or _ZERO.fullmatch(label):  # such as legit, not-fraud, 0.0
        return False
    if _says_only_fraud(label):  # such as yes, fraud, 1
        return True
    parts = set(plain.split())
    if parts & KIND_WORDS:  # a kind of fraud such as stolen_card; no_stolen_card is honest
        return not parts & _NEGATIONS
    return words.get(ALL_OTHERS)  # the user's answer for all other words, if there is one


def _says_only_fraud(text: str) -> bool:
    """Return True for a label that says fraud without a kind."""
    label = text.strip().lower()
    return bool(_ONE.fullmatch(label)) or _SIGNS_AND_SPACES.sub(" ", label).strip() in FRAUD


def _question(name: str, unknown: list[tuple[str, int]]) -> str:
    unknown.sort(key=lambda each: -each[1])
    shown = ", ".join(f"{text!r} ({count:,})" for text, count in unknown[:_SHOWN])
    more = " and more" if len(unknown) > _SHOWN else ""
    first = unknown[0][0] if unknown else "word"
    return (
        f"{name} has words that may mean fraud or not: {shown}{more}. Say it of each, as in --label-words "
        f"{first}=fraud or --label-words {first}=honest; {ALL_OTHERS}=fraud is for all others. These mean honest: "
        f"empty, 0, {', '.join(HONEST)}. These mean fraud: 1, {', '.join(FRAUD)}, and words with "
        f"{', '.join(sorted(KIND_WORDS))}"
    )


KEY = "key"
_EVENT_ID, _LABEL, _KIND, _EPISODE, _AMOUNT, _REPORTED = (
    "event_id", "label", "kind", "episode", "amount", "reported_at",
)  # fmt: skip
_FROM, _TO = "from", "to"
_SECONDS = (500_000_000, 10_000_000_000)  # of the years 1985 to 2286; as milliseconds they would be in early 1970
_NAMES = (_EVENT_ID, KEY, _FROM, _TO, _LABEL, _KIND, _EPISODE, _AMOUNT, _REPORTED)
_NO_WORDS: Mapping[str, bool] = {}  # the user has said nothing about words


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels in one form: each says that an event or a key was fraud or honest. Shapes: arrays of one length. `field`
    is the field of `keys`, None if `keys` are event ids; a key's label is for its events from `from_ms` to `to_ms`.
    Labels of the same `episode` are one fraud of a `kind`; without one a label is a fraud by itself. `reported_ms` is
    TIME_MS_MIN if unknown. `name` is the file, or with `is_column` the column of the events from which `fields` come. A
    record may be several events: their ids end in "#" and a name of `views` (tx1#payer), and its label is for all."""

    field: str | None
    keys: pa.Array
    from_ms: np.ndarray
    to_ms: np.ndarray
    is_fraud: np.ndarray
    kind: pa.Array
    episode: pa.Array
    amount: np.ndarray
    reported_ms: np.ndarray
    is_column: bool = False
    name: str = ""
    fields: tuple[str, ...] = ()
    views: tuple[str, ...] = ()

    def taken(self, row_numbers: np.ndarray) -> Labels:
        """Return the labels at these rows."""
        rows = pa.array(row_numbers)
        return replace(
            self, keys=self.keys.take(rows), from_ms=self.from_ms[row_numbers], to_ms=self.to_ms[row_numbers],
            kind=self.kind.take(rows), is_fraud=self.is_fraud[row_numbers], episode=self.episode.take(rows),
            amount=self.amount[row_numbers], reported_ms=self.reported_ms[row_numbers],
        )  # fmt: skip

    @property
    def has_reports(self) -> bool:
        return bool((self.reported_ms != TIME_MS_MIN).any())


def read_labels(source: str, events: Records | Path, schema: Schema, words: Mapping[str, bool] = _NO_WORDS) -> Labels:
    """Read the labels that `--labels` names: a file, or a column of the events. `words` says of words such as
    `chargeback` whether they mean fraud. `fields` of the result are the event fields whose values come from the column
    of the labels: a rule that read one would know the label. A view is one way to read a record as an event, so that a
    record with several views becomes several events. Raises: UsageError, SourceError."""
    records = Records.of(events)
    views = records.mapping.view_names
    if Path(source).is_file():
        return replace(labels_of_table(_read_table(Path(source)), schema, source, words), views=views)
    tables = [
        table
        for view in records.mapping.views
        for path in records.paths
        for table in _columns_of_events(path, schema, source, view)
    ]
    fields = tuple(
        name
        for name in schema.columns()
        if any(
            # from the column itself, or from a nested value of it with this path
            name not in view.constants and (view.path(name)[0] == source or view.path(name) == path_of_text(source))
            for view in records.mapping.views
        )
    )
    return replace(labels_of_column(tables, source, schema, words), fields=fields, views=views)


def labels_of_column(
    tables: Iterable[pa.Table], column: str, schema: Schema, words: Mapping[str, bool] = _NO_WORDS
) -> Labels:
    """Collect the labels from a column of the events. Raises: UsageError if one of the tables lacks the column."""
    id_names = _id_names(schema)
    ids, values = [pa.array([], TEXT)], [pa.array([], TEXT)]
    for table in tables:
        id_columns = [name for name in id_names if name in table.column_names]
        label_values = values_at(table, column)
        if label_values is None or not id_columns:
            raise UsageError(
                f"the events have no column {column}, or none of the ids {', '.join(id_names)}; give a column of "
                "theirs, or a file of labels that is there"
            )
        id_ = pc.coalesce(*(_as_texts(table[name], name) for name in id_columns))
        has_label = pc.and_(pc.is_valid(id_), pc.is_valid(label_values))
        ids.append(id_.filter(has_label).combine_chunks())
        values.append(_as_texts(label_values.filter(has_label), column).combine_chunks())
    joined = pa.table({_EVENT_ID: pa.concat_arrays(ids), _LABEL: pa.concat_arrays(values)})
    labels = labels_of_table(joined, schema, f"the column {column}", words)
    # Only the frauds: a no in a column does not mean that anyone has checked.
    fields = (column,) if column in schema.columns() else ()
    return replace(labels.taken(np.flatnonzero(labels.is_fraud)), is_column=True, fields=fields)


def labels_of_table(table: pa.Table, schema: Schema, name: str, words: Mapping[str, bool] = _NO_WORDS) -> Labels:
    """Convert a table to `Labels`; a word in `words` is True for fraud. Raises: UsageError with the missing part."""
    fields = [column for column in table.column_names if column in schema.columns() and column not in _NAMES]
    id_column = next((column for column in (_EVENT_ID, *_id_names(schema)) if column in table.column_names), None)
    key_column = next((column for column in (KEY, *fields) if column in table.column_names), None)
    if id_column is None and key_column is None:
        raise UsageError(f"{name} has no column {_EVENT_ID} or {KEY}, and none of a field of the events; give one")
    keys = _texts(table, id_column or key_column or "")
    if keys.null_count:
        raise UsageError(f"{name} has {keys.null_count} rows without {id_column or key_column}; leave them out")
    rows = table.num_rows
    is_fraud, kind = np.ones(rows, np.bool_), _texts(table, _KIND)
    if _LABEL in table.column_names:
        label = _texts(table, _LABEL)
        is_fraud, names_kind = verdicts(label, words, name)
        if _KIND not in table.column_names:
            kind = pc.if_else(pa.array(names_kind), label, pa.scalar(None, TEXT))
    from_ms, to_ms = _times(table, _FROM, TIME_MS_MIN, name), _times(table, _TO, TIME_MS_MAX, name)
    episode, amount = _texts(table, _EPISODE), _amounts(table, name)
    field, reported_ms = None if id_column is not None else key_column, _times(table, _REPORTED, TIME_MS_MIN, name)
    return Labels(field, keys, from_ms, to_ms, is_fraud, kind, episode, amount, reported_ms, name=name)


def _id_names(schema: Schema) -> tuple[str, ...]:
    names = (field.name for e in schema.event_types for field in e.fields if field.type.kind is Kind.ID)
    return tuple(dict.fromkeys(names))


def _texts(table: pa.Table, column: str) -> pa.Array:
    """Return a column as text; nulls if the table lacks it."""
    if column not in table.column_names:
        return pa.nulls(table.num_rows, TEXT)
    return _as_texts(table[column], column).combine_chunks()


def _as_texts(values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    try:
        texts = values.cast(TEXT)
        texts.validate(full=True)
        return texts
    except pa.ArrowException as error:
        raise UsageError(
            f"the column {column} of the labels is {values.type} and cannot be read: {error}; give texts, numbers or "
            "booleans"
        ) from error


def _amounts(table: pa.Table, name: str) -> np.ndarray:
    try:
        values = _texts(table, _AMOUNT).cast(pa.float64())
    except pa.ArrowInvalid as error:
        raise UsageError(f"{name}: {_AMOUNT} is no number: {error}") from error
    return np.asarray(values.fill_null(np.nan), np.float64)


def _times(table: pa.Table, column: str, otherwise_ms: int, name: str) -> np.ndarray:
    """Convert a column to milliseconds UTC: timestamps, texts with an offset, or whole milliseconds."""
    if column not in table.column_names:
        return np.full(table.num_rows, otherwise_ms, np.int64)
    values = table[column].combine_chunks()
    type_ = values.type
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        milliseconds = values.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    elif pa.types.is_integer(type_):
        _check_milliseconds(values, column, name)
        milliseconds = values.cast(pa.int64())
    elif pa.types.is_string(type_) or pa.types.is_large_string(type_):
        milliseconds = _parsed(values, column, name)
    elif pa.types.is_null(type_):
        milliseconds = values.cast(pa.int64())
    else:
        raise UsageError(f"{name}: {column} is {type_}; give times with a zone, like 2026-03-01T10:00:00Z")
    return np.asarray(milliseconds.fill_null(otherwise_ms), np.int64)


def _check_milliseconds(values: pa.Array, column: str, name: str) -> None:
    """Refuse report dates that are numbers in another unit: all frauds would be known from the start, or never."""
    span = pc.min_max(values).as_py()
    if column != _REPORTED or span["min"] is None:
        return
    is_seconds = _SECONDS[0] <= span["min"] and span["max"] <= _SECONDS[1]
    if is_seconds or span["min"] < EVENT_TIME_MS_MIN or span["max"] > EVENT_TIME_MS_MAX:
        raise UsageError(
            f"{name}: {column} has numbers like {span['max']}, which are not milliseconds since 1970; give these, or "
            "times with a zone"
        )


def _parsed(values: pa.Array, column: str, name: str) -> pa.Array:
    texts = values.cast(TEXT)
    times = times_us(texts)
    wrong = [text for text in texts.filter(pc.is_null(times)).to_pylist() if text is not None]
    wrong += [text for text in different_texts(texts).to_pylist() if text is not None and has_zone(text) is False]
    if wrong:
        raise UsageError(f"{name}: {column}: {wrong[0]!r} is not a time with an offset such as 2026-01-31T00:00:00Z")
    return pa.array(np.asarray(times.fill_null(0)) // 1_000, mask=np.asarray(pc.is_null(times)))


def _read_table(path: Path) -> pa.Table:
    """Read a file of labels: Parquet, CSV or JSON lines. Times of a CSV stay text. Raises: UsageError."""
    try:
        match path.suffix.lower():
            case ".parquet":
                return pq.read_table(path, coerce_int96_timestamp_unit=INT96_UNIT)
            case ".csv":
                with pcsv.open_csv(path) as reader:
                    names = reader.schema.names
                options = pcsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True)
                return pcsv.read_csv(path, convert_options=options)
            case ".json" | ".jsonl" | ".ndjson":
                return _read_lines(path)
    except (OSError, UnreadableError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as labels: {error}") from error
    raise UsageError(f"{path} is no file of labels; name it *.parquet, *.csv or *.jsonl")


def _read_lines(path: Path) -> pa.Table:
    """Read JSON lines. Times are texts or numbers; Arrow's own times would lose their zone."""
    times = pa.schema([(name, pa.string()) for name in (_FROM, _TO, _REPORTED)])
    return read_json_table(path, parse=pj.ParseOptions(explicit_schema=times))


def _columns_of_events(path: Path, schema: Schema, column: str, mapping: FieldMapping) -> Sequence[pa.Table]:
    """Read the ids of events and one column from each file. A JSON file is read whole, from others only these columns.
    The column may be a path into a nested one, such as `meta.fraud`. Raises: SourceError, UsageError."""
    kind = kind_of(path)
    id_columns = (mapping.path(name)[0] for name in _id_names(schema))
    column_names = dict.fromkeys((*id_columns, *_outermost_name(column), column))  # `meta`, `meta.fraud`
    tables = []
    for file in files_of(path):
        try:
            tables.append(
                read_json_table(file)
                if kind == "json"
                else _columns_of_table(file, path, kind, list(column_names), mapping)
            )
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{file}: the column {column} cannot be read: {error}") from error
    return [ids_and_column(table, schema, column, mapping) for table in tables]


def _columns_of_table(file: Path, folder: Path, kind: str, column_names: list[str], mapping: FieldMapping) -> pa.Table:
    """Read columns of a file. In CSV the last of them, the labels, is of the type that its texts have."""
    table = open_table(file, folder, kind, mapping.file)
    names = table.present(column_names)
    columns = table.all_rows(names)
    if table.csv is None or column_names[-1] not in names:
        return columns
    place = names.index(column_names[-1])
    return columns.set_column(place, column_names[-1], typed(columns[column_names[-1]], None))


def ids_and_column(table: pa.Table, schema: Schema, column: str, mapping: FieldMapping) -> pa.Table:
    """Return the ids of events under the names of their fields, and the column."""
    columns = {name: pa.concat_arrays(table[name].chunks) for name in table.column_names if table[name].num_chunks}
    ids = mapping.arrays(schema, columns, table.num_rows)
    chosen = {name: mapping.event_ids(_as_texts(ids[name], name)) for name in _id_names(schema) if name in ids}
    label_values = values_at(table, column)
    return pa.table({**chosen, **({} if label_values is None else {column: label_values})})


def _outermost_name(column: str) -> tuple[str, ...]:
    """Return the outermost name of a path into nested values."""
    return path_of_text(column)[:1]


def values_at(table: pa.Table, column: str) -> pa.ChunkedArray | None:
    """Return the column of this name, or the values at this path, such as `meta.fraud`; None if there are none."""
    if column in table.column_names:
        return table[column]
    root = next((name for name in _outermost_name(column) if name in table.column_names), None)
    values = None if root is None else array_at({root: pa.concat_arrays(table[root].chunks)}, path_of_text(column))
    return None if values is None else pa.chunked_array([values])
