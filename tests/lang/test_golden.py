"""Golden files: each input file gives exactly the report, or the dump, next to it.

    diagnostics/*.cep         mistakes in files, including mistakes that only the compiler can find
    arguments/*.cep, *.toml   mistakes in the arguments that a rule gives a pattern
    lints/*.cep               findings
    ir/*.cep                  the result of a sound file
    */parts/                  imported files: the event type of most cases, and the tests of most findings

A fix removes its diagnostic, a finding can be silenced, and a sound file has none.
`pytest tests/lang/test_golden.py` with the environment variable UPDATE_GOLDEN=1 writes them again: read the diff.
"""

import contextlib
import os
import random
import tomllib
from pathlib import Path

import pytest

from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic, Fix, Span
from cep.lang.edit.assist import fixed
from cep.lang.explain.catalogue import CATALOGUE
from cep.lang.explain.render import render_text
from cep.lang.lint.run import lint
from cep.lang.load import Checked, load_files, load_text
from cep.nfa.compile import compilable
from cep.report.plan import find_large_states
from tests.corpus.cases import Case
from tests.corpus.engines import by_advance
from tests.lang.common import EVENTS, shown
from tests.lang.dump import dump_pattern
from tests.lang.generate import random_file

GOLDEN = Path(__file__).parent / "golden"
DIAGNOSTICS = sorted((GOLDEN / "diagnostics").glob("CEP*.cep"))
ARGUMENTS = sorted((GOLDEN / "arguments").glob("CEP*.cep"))
LINTS = sorted((GOLDEN / "lints").glob("CEP*.cep"))
IR = sorted((GOLDEN / "ir").glob("*.cep"))


def load(path: Path) -> Checked:
    """Check a golden file under its bare name, so that the report is the same in every folder."""
    with contextlib.chdir(path.parent):
        return compilable(load_files([path.name], GOLDEN))


def compare(path: Path, text: str) -> None:
    expected = path.with_suffix(".out")
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DIAGNOSTICS, ids=lambda p: p.stem)
def test_diagnostics(path: Path) -> None:
    checked = load(path)
    code = path.name.partition("_")[0]
    assert {d.code for d in checked.diagnostics} == {code}
    compare(path, render_text(checked.diagnostics, checked.sources))


@pytest.mark.parametrize("path", ARGUMENTS, ids=lambda p: p.stem)
def test_arguments(path: Path) -> None:
    checked = load(path)
    assert checked.ok, render_text(checked.diagnostics, checked.sources)
    bound, diagnostics = bind(checked.patterns["p"], tomllib.loads(path.with_suffix(".toml").read_text("utf-8")))
    assert bound is None
    assert {d.code for d in diagnostics} == {path.name.partition("_")[0]}
    compare(path, render_text(diagnostics, checked.sources))


@pytest.mark.parametrize("path", IR, ids=lambda p: p.stem)
def test_ir(path: Path) -> None:
    checked = load(path)
    assert checked.ok, render_text(checked.diagnostics, checked.sources)
    compare(path, "\n".join(dump_pattern(p) for p in checked.patterns.values()))


def test_every_code_has_a_file_and_every_file_a_code() -> None:
    shown = {path.name.partition("_")[0] for path in (*DIAGNOSTICS, *ARGUMENTS, *LINTS)}
    assert shown == set(CATALOGUE)


@pytest.mark.parametrize("path", DIAGNOSTICS, ids=lambda p: p.stem)
def test_a_fix_takes_its_diagnostic_away(path: Path) -> None:
    def resolve(_: str, written: str) -> tuple[str, str] | str:
        file = path.parent / written
        return (written, file.read_text(encoding="utf-8")) if file.is_file() else "not there"

    checked = load(path)
    for diagnostic in checked.diagnostics:
        if diagnostic.fix is None or diagnostic.fix.span.file != path.name:
            continue
        text = fixed([diagnostic], checked.sources)[path.name]
        messages = [(d.code, d.message) for d in load_text(text, path.name, resolve).diagnostics]
        assert (diagnostic.code, diagnostic.message) not in messages


def test_several_fixes_at_once_and_none_twice() -> None:
    def change(start: int, end: int, text: str) -> Diagnostic:
        return Diagnostic("CEP201", "m", fix=Fix(Span("f", start, end), text))

    changes = [change(4, 7, "two"), change(0, 3, "one"), change(0, 3, "one"), change(5, 9, "overlaps")]
    assert fixed(changes, {"f": "aaa bbb ccc"}) == {"f": "one two ccc"}


def test_known_fixes() -> None:
    text = (
        "event t { i id event_time time k string s enum(alpha, beta) c string? }\n"
        "pattern p by k { seq x where x: t s == 'alpha' && c != null and s <> bet emit v = s }"
    )
    for _ in range(4):
        checked = load_text(text)
        text = fixed(checked.diagnostics, checked.sources).get("<text>", text)
    assert "s == alpha and c is not null and s != beta emit v = x.s" in text


LINT_FILES = sorted((Path(__file__).parent / "golden" / "lints").glob("CEP*.cep"))
TESTS = """
test "fires" of p { c: 0s transaction amount=900  expect matches 1 }
test "does not" of p { c: 0s transaction amount=1  expect none }
"""


def codes_of(body: str, header: str = "pattern p by card_id", before: str = "", tests: str = TESTS) -> list[str]:
    checked = load_text(f"{EVENTS}\n{before}\n{header} {{ {body} }}\n{tests}")
    assert checked.ok, shown(checked)
    return [d.code for d in lint(checked)]


@pytest.mark.parametrize("path", LINT_FILES, ids=lambda p: p.stem)
def test_lints(path: Path) -> None:
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
        "lat * 10.0 - lat * 10.0 != lat * 10.0 - lat * 10.0",  # NaN if it overflows
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
        "amount != amount",
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
    header, body = "pattern p(l: list of string) by card_id", "seq a where a: transaction country in l"
    with_list = " of p with (l = bad) "  # as a rule may give it, too
    assert codes_of(body, header, 'list bad: string = ["KP"]', TESTS.replace(" of p ", with_list)) == []


def test_the_patterns_of_the_project_are_quiet() -> None:
    paths = sorted((Path(__file__).parents[2] / "patterns").rglob("*.cep"))
    checked = load_files(paths)
    diagnostics = lint(checked)
    assert not diagnostics, render_text(diagnostics, checked.sources)


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
