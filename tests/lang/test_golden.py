"""Golden files: each input file gives exactly the report, or the dump, next to it.

    diagnostics/*.cep         mistakes in files, including mistakes that only the compiler can find
    arguments/*.cep, *.toml   mistakes in the arguments that a rule gives a pattern
    lints/*.cep               findings (test_lint.py compares them)
    ir/*.cep                  the result of a sound file
    diagnostics/parts/        imported files; most cases import the event type of events.cep

`pytest tests/lang/test_golden.py` with the environment variable UPDATE_GOLDEN=1 writes them again: read the diff.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from pathlib import Path

import pytest

from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic, Fix, Span
from cep.lang.edit.assist import fixed
from cep.lang.explain.catalogue import CATALOGUE
from cep.lang.explain.render import render_text
from cep.lang.load import Checked, load_files, load_text
from cep.nfa.compile import compilable
from tests.lang.dump import dump_pattern

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
