"""CEP714 against the matcher: an alternative that it names matches in no stream."""

from __future__ import annotations

import random

from cep.lang.lint.run import lint
from cep.lang.load import load_text
from tests.corpus.cases import Case
from tests.corpus.engines import by_advance

_EVENT = "event t { i id  event_time time  h string  kind enum(a, b, c) }\n"
_CONDITIONS = ("kind == a", "kind == b", "kind in [a, b]", "true")
_VARIABLES = "abcdef"


def _pattern(draw: random.Random) -> tuple[str, dict[str, str]]:
    """Draw two alternatives of one to three steps, and a condition for each step."""
    sizes = draw.choice([(1, 2), (2, 1), (1, 3), (2, 3), (3, 2)])
    names = iter(_VARIABLES)
    options = [draw.choice([" -> ", ", ", " -> "]).join(next(names) for _ in range(size)) for size in sizes]
    conditions = {name: draw.choice(_CONDITIONS) for name in _VARIABLES[: sum(sizes)]}
    return " | ".join(f"({option})" if len(option) > 1 else option for option in options), conditions


def _named(structure: str, conditions: dict[str, str]) -> set[str]:
    """Return the last variables of the alternatives that the lint names."""
    where = "\n".join(f"{name}: t {condition}" for name, condition in conditions.items())
    pattern = f"{_EVENT}pattern p by h {{ seq {structure} within 1 h where {where} emit n = 1 }}"
    findings = [finding for finding in lint(load_text(pattern)) if finding.code == "CEP714"]
    return {finding.message.split("`")[1] for finding in findings}


def test_a_named_alternative_never_matches() -> None:
    count, matched = 0, False
    for seed in range(150):
        draw = random.Random(seed)
        structure, conditions = _pattern(draw)
        for name in _named(structure, conditions):
            count += 1
            for _ in range(5):
                events = " ".join(f"{draw.choice('abc')}{place}" for place in range(1, 9))
                fields = {"name": structure, "pattern": structure, "events": events, "matches": [], "skip": "past last"}
                case = Case("options", {**fields, "any": list(conditions), "where": conditions})
                bound = {variable for match in by_advance(case).sorted().matches for variable, _ in match.bindings}
                matched |= bool(bound)
                assert name not in bound, (structure, conditions, events)
    assert matched
    assert count > 15
