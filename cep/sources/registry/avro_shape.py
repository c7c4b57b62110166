"""A schema of Avro → whether a short record of it may be made to cost without end.

The reader takes as many levels of the processor's stack as a record has, and as many items of an array as the record
says there are. So a schema that has itself inside lets a sender end the process. An array whose items take no bytes
lets a few bytes ask for all of the memory.
Tested by: tests/sources/registry/test_registry.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

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
        """Note every named type in a schema."""
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            self.named.setdefault(schema["name"].rpartition(".")[2], []).append(schema)
        for inner in _parts(schema):
            if not isinstance(inner, str):
                self.name_all(inner)

    def visit(self, schema: object) -> None:
        """Visit a type and all types inside it, each once, and note whether types are nested in themselves."""
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
            self.has_empty_items = True
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
            self._empty[id(schema)] = False  # one that has itself inside never ends
            kind = schema.get("type")
            if kind in _RECORDS:
                self._empty[id(schema)] = all(map(self._is_empty, _parts(schema)))
            elif kind == "fixed":
                self._empty[id(schema)] = schema.get("size") == 0
            elif kind not in _SIZED:
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
        elif kind not in ("enum", "fixed"):
            yield kind
