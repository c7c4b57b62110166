"""The library's arguments → which column has each field, and how its values are written.

Must not load narwhals: the verbs read their flags into these, and most of them see no frame.
Tested by: tests/api/test_match.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.columnar.convert import Written
from cep.columnar.file_form import FileForm, form_of_flags
from cep.columnar.mapping import FieldMapping, check_fields, mapping_of, view_of
from cep.lang.diagnostics import did_you_mean


class Forms(TypedDict, total=False):
    """The forms of values: the flags and settings of the same names, with underscores."""

    fixed: Mapping[str, str]
    minor: Sequence[str]
    values: Mapping[str, str]
    time_unit: str
    time_form: str
    time_base: str
    delimiter: str
    quote: str
    encoding: str
    decimal: str
    thousands: str


@dataclass(frozen=True, slots=True)
class Naming:
    """The way to read a frame's columns: `columns` from a field to the column that has it, or to the path inside a
    nested one, the zone of times that name none, and how values are written."""

    columns: Mapping[str, str] | None = None
    tz: str | None = None
    forms: Forms = field(default_factory=Forms)

    def __post_init__(self) -> None:
        for name in self.forms:
            if name not in Forms.__annotations__:
                raise UsageError(f"there is no {name}=; {did_you_mean(name, list(Forms.__annotations__), 'forms')}")

    @property
    def fixed(self) -> Mapping[str, str]:
        """The fields that have one value in every row."""
        return self.forms.get("fixed", {})

    @property
    def has_time(self) -> bool:
        """True if it says how times are written, so that no other form is meant."""
        return any(self.forms.get(name) for name in ("time_unit", "time_form", "time_base"))

    @property
    def file_form(self) -> FileForm:
        """The signs of files and numbers. Raises: UsageError."""
        return form_of_flags(**{name: str(self.forms.get(name, "")) for name in FileForm.__dataclass_fields__})

    def values(self, schema: Schema) -> FieldMapping:
        """Return how the values of columns that have the names of their fields are written. Raises: UsageError."""
        mapping = self._mapping(tuple(f'{name}="{name}"' for name in self.of_views))
        check_fields(mapping, schema)
        return mapping

    @property
    def of_views(self) -> list[str]:
        """The fields that are a view's own, with its name in front."""
        return [name for name in self.columns or {} if view_of(name)[0]]

    def fields_of(self, names: Collection[str]) -> list[tuple[set[str], dict[str, str]]]:
        """Return for each view its fields among the given ones; and the fixed ones."""
        views = dict.fromkeys(view_of(name)[0] for name in (*(self.columns or {}), *self.fixed))
        views.pop("", None)
        fields = []
        for view in views or ("",):
            fixed = {view_of(n)[1]: value for n, value in self.fixed.items() if view_of(n)[0] in ("", view)}
            fields.append(({*(view_of(n)[1] for n in names if view_of(n)[0] in ("", view)), *fixed}, fixed))
        return fields

    def of_records(self) -> FieldMapping:
        """Return where and how fields are in the records of files. Raises: UsageError."""
        columns = tuple(f"{name}={column}" for name, column in (self.columns or {}).items())
        return self._mapping(columns, always_zoned=True)

    def _mapping(self, columns: Sequence[str], *, always_zoned: bool = False) -> FieldMapping:
        forms = self.forms
        zone = self.tz or "" if always_zoned or self.has_time else ""
        base = forms.get("time_base", "")
        time = Written(forms.get("time_unit", ""), forms.get("time_form", ""), zone, base=base)
        fixed = tuple(f"{name}={value}" for name, value in self.fixed.items())
        values = tuple(f"{name}={word}" for name, word in forms.get("values", {}).items())
        return mapping_of(columns, fixed, tuple(forms.get("minor", ())), time, self.file_form, values)
