"""Values of Kafka records in Avro or Protobuf → Decoded, with the client's own deserializers.

    json       objects as text; no schema is needed. With a registry a schema's id may precede them, which is skipped
    avro       with a registry: the writer's schema by the id in front of each record; with a file alone: bare records
    protobuf   with a registry: an id and the place of the message in front of each record; the message's class comes
               from a file of descriptors (`protoc --include_imports --descriptor_set_out=FILE`)

The deserializers make a dictionary of each record, which costs several times as much as JSON here. There is no columnar
one. A record that does not match its schema is set aside. So is one whose schema the registry does not return, while it
answers other requests. If the registry answers nothing, the records may be valid: the caller gets SourceAwayError and
reads them again later. This module must not depend on Spark.

Some schemas of Avro let a short record cost without end, so the `Shape` of each schema is looked at first. A schema
that has itself inside lets a sender use up the processor's stack, which ends the process. An array whose items take no
bytes lets a few bytes ask for all of the memory.
Tested by: tests/sources/registry/test_registry.py.
"""

from __future__ import annotations

import functools
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base import limits
from cep.base.errors import SourceAwayError, SourceError, UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, EventRows, Poison, decode_json, decode_rows, in_row_order
from cep.columnar.mapping import TYPE_FIELD, FieldMapping
from cep.sources.registry.form import RecordFormat

_RECORDS = ("record", "error")
_SIZED = ("array", "map", "enum")


@dataclass(frozen=True, slots=True)
class Shape:
    """`is_nested`: a record may have itself inside. `has_empty_items`: an array may have items that take no bytes."""

    is_nested: bool
    has_empty_items: bool


def shape_of(schema: object, others: Iterable[object] = ()) -> Shape:
    """Return the shape of a schema, as JSON; `others` are the schemas that it refers to. An invalid schema has none."""
    types = _Types()
    for each in (*others, schema):
        types.name_all(each)
    types.visit(schema)
    return Shape(types.is_nested, types.has_empty_items)


@dataclass(slots=True)
class _Types:
    """The named types of some schemas; two with one name in different namespaces count as both."""

    named: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    is_nested: bool = False
    has_empty_items: bool = False
    _open: set[int] = field(default_factory=set)
    _done: set[int] = field(default_factory=set)
    _empty: dict[int, bool] = field(default_factory=dict)

    def name_all(self, schema: object) -> None:
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            self.named.setdefault(schema["name"].rpartition(".")[2], []).append(schema)
        for inner in _parts(schema):
            if not isinstance(inner, str):
                self.name_all(inner)

    def visit(self, schema: object) -> None:
        """Visit an Avro type and its inner types once; note types that contain themselves and arrays of empty items."""
        if isinstance(schema, str):
            for named in self._of_name(schema):
                self.visit(named)
            return
        if id(schema) in self._open:
            self.is_nested = True
        if id(schema) in self._open or id(schema) in self._done:
            return
        self._open.add(id(schema))
        if isinstance(schema, dict) and schema.get("type") == "array" and self._is_empty(schema.get("items")):
            self.has_empty_items = True  # a few bytes of a record may then become a huge array
        for inner in _parts(schema):
            self.visit(inner)
        self._open.remove(id(schema))
        self._done.add(id(schema))

    def _is_empty(self, schema: object) -> bool:
        """Return True if a value of the type may take zero bytes. An array of such values can be huge in few bytes."""
        if isinstance(schema, str):
            return schema == "null" or any(map(self._is_empty, self._of_name(schema)))
        if not isinstance(schema, dict):
            return False  # a union takes a byte
        if id(schema) not in self._empty:
            self._empty[id(schema)] = False  # the answer for a record inside of itself: its value never ends
            kind = schema.get("type")
            if kind in _RECORDS:
                self._empty[id(schema)] = all(map(self._is_empty, _parts(schema)))
            elif kind == "fixed":
                self._empty[id(schema)] = schema.get("size") == 0
            elif kind not in _SIZED:  # the name of a type, or a type in a type
                self._empty[id(schema)] = self._is_empty(kind)
        return self._empty[id(schema)]

    def _of_name(self, name: str) -> list[dict[str, Any]]:
        return self.named.get(name.rpartition(".")[2], [])


def _parts(schema: object) -> Iterator[object]:
    """Yield the types that a type is made of."""
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in _RECORDS:
            fields = schema.get("fields")
            for each in fields if isinstance(fields, list) else ():
                if isinstance(each, dict):
                    yield each.get("type")
        elif kind in ("array", "map"):
            yield schema.get("items" if kind == "array" else "values")
        elif kind not in ("enum", "fixed"):  # the name of a type, or a type in a type
            yield kind


# The registry's client and the decoders take a fifth of a second to import: a job over JSON starts without them.
if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.serialization import SerializationContext
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

_FRAME_BYTES = 5  # a zero, and the schema's id in four bytes, big-endian
_MISSING, _DENIED = 404, (401, 403)
_OF_THE_REGISTRY = (401, 403, 407, 408, 429)  # among the answers below 500, those that do not concern the schema's id
_SERVER_ERROR, _SERVER_ERROR_CODE = 500, 50_000
_REACHABLE_TWICE = 2
_WAITS = {"timeout": 10, "max.retries": 3, "retries.wait.ms": 1_000, "retries.max.wait.ms": 20_000}
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
_SHOWN_BYTES = 1_000
_REASON_CHARACTERS = 300
_SHOWN_VALUE_CHARACTERS = 40
_INT64 = range(-(2**63), 2**63)
_TREES = ("google.protobuf.Value", "google.protobuf.ListValue")  # of Struct, which has JSON in it


def decode(form: RecordFormat, schema: Schema, values: pa.Array, topic: str) -> Decoded:
    """Decode records of one topic into typed columns, and set aside the records that cannot be decoded, such as nulls.

    A record becomes an event for each view (mapping of fields) of the form. The values are binary. Raises:
    SourceAwayError if the registry does not answer, SourceError if this job may read none of its schemas, UsageError
    for an unreadable schema file."""
    if form.name == "json":
        return decode_json(schema, _without_frames(values) if form.registry else values, form.mapping)
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    texts = values.to_pylist()
    skip_reason = _skip_reasons(form, texts)  # asks the registry for the schemas of all records
    read = _reader(form)
    context = SerializationContext(topic, MessageField.VALUE)
    rows: list[dict[str, Any]] = []
    poison: list[Poison] = []
    for value in texts:
        reason = "the record is empty" if not value else skip_reason(value)
        if not reason:
            try:
                rows.append(read(value, context))
                continue
            except Exception as error:  # noqa: BLE001 deserializers have no common error; the registry has answered
                reason = str(error).split("\n")[0] or type(error).__name__
        poison.append(Poison("unreadable", reason, _shown(value)))
    parts = [part for view in form.mapping.views for part in _decoded_columns(schema, view, rows)]
    merged, _ = in_row_order(schema, parts)
    return replace(merged, poison=(*merged.poison, *poison))


def _without_frames(values: pa.Array) -> pa.Array:
    """Remove the frame with the schema's id from JSON values. A value is framed if it begins with a zero byte."""
    data = values.cast(pa.large_binary())
    is_long = pc.greater_equal(pc.binary_length(data), _FRAME_BYTES)
    is_framed = pc.fill_null(pc.and_(is_long, pc.starts_with(data, pattern=b"\0")), fill_value=False)
    framed = data.filter(is_framed)
    if not len(framed):
        return values
    # The frames are cut out by hand: Arrow's binary_slice fails for a value that is a frame and nothing else.
    _, offset_bytes, content = framed.buffers()
    offsets = np.frombuffer(offset_bytes, np.int64)[framed.offset : framed.offset + len(framed) + 1]
    is_content = np.ones(content.size, bool)
    is_content[offsets[:-1, None] + np.arange(_FRAME_BYTES)] = False
    rest = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]][is_content[offsets[0] : offsets[-1]]]
    rest_offsets = offsets - offsets[0] - _FRAME_BYTES * np.arange(len(offsets))  # each frame before is gone
    cut = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(framed), [None, pa.py_buffer(rest_offsets), pa.py_buffer(rest)]
    )
    return pc.replace_with_mask(data, is_framed, cut)


def _decoded_columns(
    schema: Schema, mapping: FieldMapping, rows: Sequence[dict[str, Any]], first_row: int = 0
) -> list[EventRows]:
    """Put rows into columns and decode these. If the values of a field do not fit one column, decode each half of the
    rows by itself. A value that fits no column even in a single row is a stray: the row has null instead, and a reason
    that shows the value. Rows count from `first_row`."""
    if not rows:
        return []
    fields = {name: [mapping.value(row, name) for row in rows] for name in mapping.paths(schema)}
    strays: dict[str, dict[int, str]] = {}
    if len(rows) == 1:
        strays = {name: {0: shown} for name, (value,) in fields.items() if (shown := _stray(value))}
        fields |= {name: [None] for name in strays}
    present = [name for name, values_of_field in fields.items() if any(value is not None for value in values_of_field)]
    try:
        arrays = [pa.array(fields[name]) for name in present]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        half = len(rows) // 2
        return [
            *_decoded_columns(schema, mapping, rows[:half], first_row),
            *_decoded_columns(schema, mapping, rows[half:], first_row + half),
        ]
    table = pa.Table.from_arrays(arrays, names=present) if present else pa.table({TYPE_FIELD: pa.nulls(len(rows))})
    show = partial(_shown_row, schema, mapping, rows)
    named = replace(mapping, columns=())  # the columns have the names of their fields
    part, part_rows = decode_rows(schema, table, show, named, strays)
    return [(part, first_row + part_rows)]


def _stray(value: object) -> str:
    """Return a value that no column can hold as text, "" for another value."""
    try:
        pa.array([value])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return repr(value)[:_SHOWN_VALUE_CHARACTERS]
    return ""


def _shown_row(schema: Schema, mapping: FieldMapping, rows: Sequence[dict[str, Any]], row: int) -> str:
    """Show a record; under the names of its fields, where some of them are protected."""
    record = rows[row]
    if schema.protected and mapping.columns:
        record = {name: mapping.value(record, name) for name in mapping.paths(schema)}
    return json.dumps(record, default=str)


def _shown(value: bytes | None) -> str:
    return "" if value is None else value[:_SHOWN_BYTES].hex()


# -------------------------------------------------------------------------------------------------------- registry


@functools.cache
def client_of(registry: tuple[tuple[str, str], ...]) -> SchemaRegistryClient:
    """Return the client of a registry, one for each settings in a process. Raises: UsageError for bad settings."""
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

    try:
        # Tried again here and not by the client, which cannot tell a bad id from a registry that is down.
        return SchemaRegistryClient.new_client({**dict(registry), **_waits(registry), "max.retries": 0})
    except (ValueError, TypeError) as error:
        raise UsageError(f"the schema registry's client refuses its settings: {error}") from error


def _waits(registry: tuple[tuple[str, str], ...]) -> dict[str, int]:
    """Return the numeric settings of the client. Raises: ValueError for other values."""
    return {**_WAITS, **{name: int(value) for name, value in registry if name in _NUMBERS}}


def _skip_reasons(form: RecordFormat, values: Sequence[bytes | None]) -> Callable[[bytes], str]:
    """Return a function that gives the reason to skip a record, "" for none: its schema is unknown, or few bytes of it
    could become a huge value. Records with a registry begin with a frame: a zero byte and the schema's id."""
    if not form.registry:
        shape = _shape_of_file(str(form.schema_file))
        return lambda value: _too_costly(shape, value)
    shapes = _shapes_of(form.registry)  # by frame: whether values of the schema can be huge
    unknown = _unknown_ids(form, shapes, values)

    def refusal(value: bytes) -> str:
        frame = value[:_FRAME_BYTES]
        return unknown.get(frame, "") or (_too_costly(shapes[frame], value) if frame in shapes else "")

    return refusal


def _too_costly(shape: Shape, value: bytes) -> str:
    if shape.has_empty_items:
        return "its schema has an array of items that take no bytes"
    if shape.is_nested and len(value) > limits.NESTED_RECORD_BYTES_MAX:
        return f"its schema has itself inside, and it has more than {limits.NESTED_RECORD_BYTES_MAX} bytes"
    return ""


@functools.cache
def _shapes_of(_registry: tuple[tuple[str, str], ...]) -> dict[bytes, Shape]:
    """Return the cache of a registry's schemas, by the first bytes of their records; empty at first."""
    return {}


def _unknown_ids(form: RecordFormat, shapes: dict[bytes, Shape], values: Sequence[bytes | None]) -> dict[bytes, str]:
    """Request the schemas of records, and add them to `shapes`. Return the reason for each schema that is unavailable,
    by its frame: the first bytes of its records (a zero and the schema's id). Frequent schemas come first, so that
    invented ids do not use up the limits. Raises: SourceAwayError if the registry does not answer; SourceError if it
    has refused every schema so far for missing rights."""
    unknown: dict[bytes, str] = {}
    failures, denials = 0, list[str]()  # of requests to the registry
    framed = (value[:_FRAME_BYTES] for value in values if value and len(value) >= _FRAME_BYTES and value[0] == 0)
    for frame, _ in Counter(framed).most_common():
        if frame in shapes:
            continue
        number = int.from_bytes(frame[1:], "big")
        if failures >= limits.FAILING_SCHEMAS_MAX or len(unknown) >= limits.UNKNOWN_SCHEMAS_MAX:
            count = limits.FAILING_SCHEMAS_MAX if failures >= limits.FAILING_SCHEMAS_MAX else limits.UNKNOWN_SCHEMAS_MAX
            unknown[frame] = f"schema {number} is not asked for: {count} others are not to be had from the registry"
            continue
        answer = _request_schema(form, number, has_schemas=bool(shapes))
        if isinstance(answer, Shape):
            shapes[frame] = answer
            continue
        unknown[frame] = f"the schema registry {answer.reason}"
        failures += answer.is_failure
        denials += [answer.reason] if answer.is_denied else []
    if denials and not shapes:
        # A sender may name a schema that is not for this job. Without any that is, its own rights are wrong.
        raise SourceError(_unanswered(form, denials[0]))
    return unknown


@dataclass(frozen=True, slots=True)
class _Refused:
    """The reason for which a registry gives no schema. `is_failure`: the registry's own failure, which says nothing of
    the schema. `is_denied`: the job lacks the right to read it."""

    reason: str
    is_failure: bool = False
    is_denied: bool = False


def _request_schema(form: RecordFormat, number: int, *, has_schemas: bool) -> Shape | _Refused:
    """Request a schema from the registry; the client caches it. Raises: SourceAwayError without any answer.

    A failure may be the fault of an id that a sender has invented. So the registry then gets a harmless request
    (_is_reachable). The id is at fault if the registry answers that twice. Otherwise the registry is away: wait and
    request the schema again, `max.retries` times. A refused access is also an outage for a job that had access
    before (`has_schemas`). For another job the settings are wrong: SourceError."""
    waits, failures_while_reachable, reason = _waits(form.registry), 0, ""
    for attempt in range(waits["max.retries"] + 1):
        while True:  # at most twice
            answer = _request_once(form, number)
            if isinstance(answer, Shape) or not answer.is_failure:
                return answer
            reason = answer.reason
            if not _is_reachable(form.registry):
                break
            failures_while_reachable += 1
            if failures_while_reachable == _REACHABLE_TWICE:
                return answer
        if answer.is_denied:
            raise (SourceAwayError if has_schemas else SourceError)(_unanswered(form, reason))
        if attempt < waits["max.retries"]:
            time.sleep(min(waits["retries.wait.ms"] * 2**attempt, waits["retries.max.wait.ms"]) / 1_000)
    raise SourceAwayError(_unanswered(form, reason))


def _request_once(form: RecordFormat, number: int) -> Shape | _Refused:
    """Request a schema once. Return its shape (whether few bytes can become a huge value), or a refusal."""
    import httpx2  # noqa: PLC0415
    from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

    client, failure = client_of(form.registry), f"does not give schema {number}"
    try:
        schema = client.get_schema(number)
        if form.name != "avro":
            return Shape(is_nested=False, has_empty_items=False)
        return shape_of(_parsed(schema.schema_str), _referred(client, schema))
    except SchemaRegistryError as error:
        if error.http_status_code == _MISSING:
            return _Refused(f"has no schema {number}")
        is_denied = error.http_status_code in _DENIED
        return _Refused(f"{failure}: {_short(error)}", is_failure=_is_failure(error), is_denied=is_denied)
    except httpx2.HTTPError as error:
        return _Refused(f"{failure}: {_short(error)}", is_failure=True)
    except Exception as error:  # noqa: BLE001 the client has no common error for an answer that is not as agreed
        return _Refused(f"{failure}: its answer is no schema ({type(error).__name__})", is_failure=True)


def _is_failure(error: SchemaRegistryError) -> bool:
    """Return True for a failure of the registry itself, which says nothing of the requested schema."""
    status = int(error.http_status_code)
    return status in _OF_THE_REGISTRY or status >= _SERVER_ERROR or (error.error_code or 0) >= _SERVER_ERROR_CODE


def answers(registry: tuple[tuple[str, str], ...], wait_s: int) -> bool:
    """Return True if a registry with these settings of a client answers within `wait_s`."""
    return _is_reachable((*registry, ("timeout", str(wait_s))))


def _is_reachable(registry: tuple[tuple[str, str], ...]) -> bool:
    """Return True if the registry answers a request that does not depend on records."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

    try:
        client_of(registry).get_schema_types()
    except SchemaRegistryError as error:
        return not _is_failure(error)  # it may not have that page
    except Exception:  # noqa: BLE001 as above
        return False
    return True


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_REASON_CHARACTERS]


def _referred(client: SchemaRegistryClient, schema: Any) -> list[object]:
    """Return the schemas that a registry's schema refers to, directly or indirectly."""
    waiting, referred = list(schema.references or ()), []
    references: set[tuple[str, int]] = set()
    while waiting and len(references) < limits.SCHEMA_REFERENCES_MAX:
        reference = waiting.pop()
        if (reference.subject, reference.version) not in references:
            references.add((reference.subject, reference.version))
            other = client.get_version(reference.subject, reference.version, deleted=True).schema
            referred.append(_parsed(other.schema_str))
            waiting += other.references or ()
    return referred


def _parsed(text: str | None) -> object:
    """Return a schema as JSON; a primitive type may stand as a bare word."""
    try:
        return json.loads(text or "")
    except ValueError:
        return text


@functools.cache
def _shape_of_file(path: str) -> Shape:
    return shape_of(_parsed(_file(path).decode("utf-8", "replace")))


def _unanswered(form: RecordFormat, reason: str) -> str:
    return (
        f"the schema registry at {dict(form.registry).get('url')} {reason}; check its address and the rights to it; "
        "no record is lost: the job reads them once it answers"
    )


# ------------------------------------------------------------------------------------------------------- deserializers


@functools.cache
def _reader(form: RecordFormat) -> Callable[[bytes, SerializationContext], dict[str, Any]]:
    """Return a function that decodes one value of Avro or Protobuf to a dictionary of fields."""
    if form.name == "protobuf":
        return _protobuf_reader(form)
    text = None if form.schema_file is None else _file(form.schema_file).decode()
    if form.registry:
        from confluent_kafka.schema_registry.avro import AvroDeserializer  # noqa: PLC0415

        # The file's schema is then the one to read with; the registry's says how the record was written.
        deserializer = AvroDeserializer(client_of(form.registry), text)
        return lambda value, context: _record(deserializer(value, context))
    import fastavro  # noqa: PLC0415

    assert text is not None, "checked with the settings"
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise UsageError(f"{form.schema_file} is no Avro schema: {error}") from error
    return lambda value, _: _record(fastavro.schemaless_reader(io.BytesIO(value), parsed, None))


def _record(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("the record is no Avro record with fields")
    return value


def _protobuf_reader(form: RecordFormat) -> Callable[[bytes, SerializationContext], dict[str, Any]]:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer  # noqa: PLC0415

    assert form.schema_file is not None, "checked with the settings"
    assert form.message is not None, "checked with the settings"
    deserializer = ProtobufDeserializer(
        _message_class(form.schema_file, form.message), {"use.deprecated.format": False}, client_of(form.registry)
    )

    def read(value: bytes, context: SerializationContext) -> dict[str, Any]:
        message = deserializer(value, context)
        if message is None:
            raise TypeError("the record is no message")
        return fields_of(message)

    return read


def fields_of(message: Message) -> dict[str, Any]:
    """Return the fields of a Protobuf message by name, each value of its own kind. Protobuf's own JSON is not used:
    there a number of 64 bits is a text, and so is NaN."""
    fields: dict[str, Any] = {}
    for part in message.DESCRIPTOR.fields:
        if part.has_presence and not message.HasField(part.name):
            continue
        value, convert = getattr(message, part.name), partial(_plain_value, part)
        if part.message_type is not None and part.message_type.GetOptions().map_entry:
            convert = partial(_plain_value, part.message_type.fields_by_name["value"])
            fields[part.name] = {str(key): convert(inner) for key, inner in value.items()}
        else:
            fields[part.name] = [convert(inner) for inner in value] if part.is_repeated else convert(value)
    return fields


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    """Convert the value of a Protobuf field to a Python value: a message to a dictionary, an enum to its symbol."""
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    if field.message_type is not None:
        name = str(field.message_type.full_name)
        if not name.startswith("google.protobuf."):
            return fields_of(value)
        is_wrapper = name.endswith("Value") and name not in _TREES  # such as Int64Value; _TREES are JSON
        return fields_of(value)["value"] if is_wrapper else MessageToDict(value)
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    return value if not isinstance(value, int) or value in _INT64 else str(value)  # a uint64 may be above int64


def _message_class(path: str, name: str) -> type[Message]:
    """Return the class of a message in a file of descriptors. Raises: UsageError."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    descriptors = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        descriptors.ParseFromString(_file(path))
        for file in descriptors.file:
            pool.Add(file)
        message: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (DecodeError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} has no message {name} ({error}); write it with `protoc --include_imports --descriptor_set_out`"
        ) from error
    return message


def _file(path: str) -> bytes:
    try:
        return read_file(Path(path), limits.SCHEMA_FILE_BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"the schema file {path} cannot be read: {error}") from error
