"""Lints: golden files, silenced findings, and no findings in sound files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cep.lang.explain.render import render_text
from cep.lang.lint.run import lint
from cep.lang.load import load_files, load_text
from cep.report.plan import find_large_states
from tests.corpus.cases import Case
from tests.corpus.engines import by_advance
from tests.lang.common import EVENTS, shown
from tests.lang.generate import random_file
from tests.lang.test_golden import compare, load

FILES = sorted((Path(__file__).parent / "golden" / "lints").glob("CEP*.cep"))
TESTS = """
test "fires" of p { c: 0s transaction amount=900  expect matches 1 }
test "does not" of p { c: 0s transaction amount=1  expect none }
"""


def codes_of(body: str, header: str = "pattern p by card_id", before: str = "") -> list[str]:
    checked = load_text(f"{EVENTS}\n{before}\n{header} {{ {body} }}\n{TESTS}")
    assert checked.ok, shown(checked)
    return [d.code for d in lint(checked)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path) -> None:
    checked = load(path)
    assert checked.ok, shown(checked)
    diagnostics = lint(checked, None, find_large_states(checked))
    code = path.name.partition("_")[0]
    assert code in {d.code for d in diagnostics}
    assert {d.code for d in diagnostics} <= {code, "CEP420"}
    compare(path, render_text(diagnostics, checked.sources))


@pytest.mark.parametrize(
    "condition",
    [
        "amount > 500 and amount < 501",
        "amount >= 500 and amount <= 500",
        "status == approved or status == declined",
        "status != approved and status != declined",
        'country is null or country == "KP"',
        "not (amount > 5) and amount < 7",
        "tries in [1, 2] and tries > 1",
        "online or not online",
        "a.amount is null or amount > a.amount",
        "amount != 5 and amount > 4",
        "amount > 1 and lat < 1",
    ],
)
def test_a_condition_that_can_be_true_is_not_complained_of(condition: str) -> None:
    assert codes_of(f"seq a where a: transaction {condition}") == []


@pytest.mark.parametrize(
    "condition",
    [
        "amount > 500 and amount <= 500",
        "amount == 5 and amount == 6",
        "amount == 5 and amount != 5",
        "tries in [1, 2] and tries > 2",
        "tries in [1, 2] and tries in [3]",
        "online and not online",
        "2 > tries and tries > 5",
        "1 > 2",
        "amount < amount",
        "country is null and country is not null",
        "(amount > 2 and amount < 1) or (tries > 2 and tries < 1)",
    ],
)
def test_a_condition_that_is_never_true(condition: str) -> None:
    assert "CEP701" in codes_of(f"seq a where a: transaction {condition}")


def test_a_silence_on_the_line_or_the_line_before() -> None:
    assert codes_of("seq a+ # allow(CEP420): a test bounds it\n where a: transaction amount > 1") == []
    assert codes_of("\n# allow(CEP420): a test bounds it\n\n # and more\n seq a+ where a: transaction amount > 1") == []
    wrong = codes_of("seq a+ # allow(CEP701): another code\n where a: transaction amount > 1")
    assert sorted(wrong) == ["CEP420", "CEP710"]


def test_a_name_used_in_a_definition_a_window_or_a_bound_is_used() -> None:
    header = "pattern p(least: int = 2, time: duration = 1 h, cut: decimal = 1.00) by card_id"
    body = "seq a{least,} within time where a: transaction is_large(cut) and country in bad"
    assert codes_of(body, header, 'list bad = ["KP"]\ndefine is_large(x) = amount > x') == []


def test_the_patterns_of_the_project_are_quiet() -> None:
    paths = sorted((Path(__file__).parents[2] / "patterns").rglob("*.cep"))
    checked = load_files(paths)
    diagnostics = lint(checked)
    assert not diagnostics, render_text(diagnostics, checked.sources)


@pytest.mark.slow
@pytest.mark.always
def test_random_files_have_a_report() -> None:
    for seed in range(40):
        checked = load_text(random_file(seed))
        render_text(lint(checked), checked.sources)


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
