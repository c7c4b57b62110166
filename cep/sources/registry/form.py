"""The form of a topic's values, as in the settings.

It is separate from the decoders: planning a read of a topic needs only the form, and starts in half the time.
Tested by: tests/sources/registry/test_registry.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cep.base.addresses import check_registry
from cep.base.errors import UsageError
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.sources.headers import headers_of

FORMATS = ("json", "avro", "protobuf")


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of record values (JSON, Avro, Protobuf), and where the fields are in them.

    `registry` are settings of the schema registry's client (`url` …), never printed.
    """

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
