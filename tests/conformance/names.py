"""The names of a scenario's stages and fields → names that a pattern can use, and the fields' types.

Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cep.base.schema import Kind
from cep.lang.functions import FUNCTIONS
from cep.lang.parse.lexer import RESERVED
from tests.conformance.scenario import Json, ScenarioEvent

EVENT_TYPE = "record"
ID, TIME, KEY = "event_id", "event_time", "event_key"
# The time stamp as the number that conditions of scenarios compute with; the language cannot compute with times.
STAMP = "at_ms"
# Words that are not reserved but have a meaning in place of a variable.
_WORDS = frozenset("greedy strict any until events over on none to past order".split())  # noqa: SIM905
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class UntranslatableError(Exception):
    """The language cannot express the scenario; the message names the obstacle."""


@dataclass(frozen=True, slots=True)
class Names:
    """The variable of each stage, the field of each of an event's values, the kind of each field.

    `missing` holds the fields that some event lacks: they may be null.
    """

    variables: Mapping[str, str]
    fields: Mapping[str, str]
    kinds: Mapping[str, Kind]
    missing: frozenset[str]

    def stage_of(self) -> dict[str, str]:
        """Return the stage of each variable."""
        return {variable: stage for stage, variable in self.variables.items()}


def names_of(stages: Sequence[Json], events: Sequence[ScenarioEvent]) -> Names:
    """Choose the names. Raises: UntranslatableError for a field that is sometimes text and sometimes a number."""
    kinds: dict[str, Kind] = {}
    missing: set[str] = set()
    named = list(dict.fromkeys(name for event in events for name in event.values))
    for name in named:
        values = [event.values.get(name) for event in events]
        value_kinds = {_kind(value) for value in values if value is not None}
        if len(value_kinds) > 1:
            raise UntranslatableError(f"the field {name!r} holds values of different types")
        kinds[name] = value_kinds.pop() if value_kinds else Kind.FLOAT
        if None in values:
            missing.add(name)
    for name in _fields_in(stages):
        if name not in kinds and name != "@ts":
            kinds[name] = Kind.FLOAT
            missing.add(name)
    used = {ID, TIME, KEY, STAMP, EVENT_TYPE}
    fields = {name: _fresh(name, used) for name in kinds}
    fields["@ts"] = STAMP
    kinds["@ts"] = Kind.FLOAT
    variables = {name: _fresh(name, used) for name in dict.fromkeys(stage_names(stages))}
    return Names(variables, fields, kinds, frozenset(missing))


def stage_names(stages: Iterable[Json]) -> list[str]:
    """Return the names of the stages, including the ones in groups, in the order of the text."""
    names: list[str] = []
    for stage in stages:
        names += stage_names(stage["group"]) if "group" in stage else [str(stage["name"])]
    return names


def _kind(value: float | str | bool) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOL
    return Kind.STRING if isinstance(value, str) else Kind.FLOAT


def _fields_in(raw: Json) -> list[str]:
    """Return the fields that conditions use."""
    if isinstance(raw, dict):
        fields = [raw["f"]] if isinstance(raw.get("f"), str) else []
        return fields + [name for part in raw.values() for name in _fields_in(part)]
    return [name for part in raw for name in _fields_in(part)] if isinstance(raw, list) else []


def _fresh(name: str, used: set[str]) -> str:
    """Return a name of the language as close to the given one as possible, and add it to `used`."""
    candidate = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not _NAME.fullmatch(candidate):
        candidate = f"v{candidate}"
    while candidate in used or candidate in RESERVED or candidate in _WORDS or candidate in FUNCTIONS:
        candidate += "_"
    used.add(candidate)
    return candidate
