"""The form of a topic's values, as in the settings, and headers of records → members of the JSON objects in them.

It is separate from the decoders: planning a read of a topic needs only the form, and starts in half the time.

    columns   event_type = header:ce_type
    record    ce_type=payment  {"id": "p1"}  ─▶  {"header:ce_type":"payment","id": "p1"}

So a header is a field as others are, also in a dead letter. A header that a record lacks is null: a record that brings
a member of this name itself has it twice, and is set aside.
Tested by: tests/sources/registry/test_registry.py, tests/sources/test_live_kafka.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from cep.base.errors import UsageError
from cep.base.secrets import check_registry
from cep.columnar.mapping import PLAIN, FieldMapping

_HEADER = "header:"
_FRAME_BYTES = 5  # of a schema's id in front of JSON

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None


def headers_of(mapping: FieldMapping) -> tuple[str, ...]:
    """Return the names of the headers that a mapping reads."""
    names = [path[0].removeprefix(_HEADER) for _, path in mapping.columns if path[0].startswith(_HEADER)]
    return tuple(dict.fromkeys(names))


def with_headers(value: bytes | None, headers: Headers, names: Sequence[str]) -> bytes | None:
    """Add the headers `names` of a Kafka record to its value, a JSON object, as members. Other values stay unchanged.

    The last of several headers with one name counts. Bytes other than UTF-8 are escaped. Cost: a copy of the value."""
    if value is None:
        return None
    # A registry's frame (zero byte and id of the schema) and blanks may stand before the object.
    content = value[_FRAME_BYTES:] if value[:1] == b"\0" else value
    begin = len(value) - len(content.lstrip())
    if value[begin : begin + 1] != b"{":
        return value
    header_values = dict(headers or ())
    members = orjson.dumps({_HEADER + name: _text(header_values.get(name)) for name in names})
    rest = value[begin + 1 :]
    comma = b"" if rest.lstrip()[:1] == b"}" else b","
    return value[:begin] + members[:-1] + comma + rest


def _text(header: str | bytes | None) -> str | None:
    return header.decode("utf-8", "backslashreplace") if isinstance(header, bytes) else header


FORMATS = ("json", "avro", "protobuf")


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of record values (JSON, Avro, Protobuf), and where the fields are in them. `registry` are settings of
    the schema registry's client (`url` …), never printed."""

    name: str = "json"
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    schema_file: str | None = None
    message: str | None = None
    mapping: FieldMapping = PLAIN

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise UsageError(f"records are {', '.join(FORMATS)}, not {self.name}")
        if self.name != "json" and headers_of(self.mapping):
            raise UsageError(
                f"headers are read beside JSON only, not beside {self.name}; leave header:… out of columns"
            )
        if self.name == "avro" and not self.registry and self.schema_file is None:
            raise UsageError("avro needs the url of a schema registry, or a schema file (*.avsc)")
        if self.name == "protobuf" and (not self.registry or self.schema_file is None or self.message is None):
            raise UsageError("protobuf needs the url of a schema registry, a file of descriptors and a message's name")
        if "url" in dict(self.registry):
            check_registry(dict(self.registry)["url"])
