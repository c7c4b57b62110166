"""Fixes of diagnostics: applying one removes its diagnostic."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.lang.diagnostics import Diagnostic, Fix, Span
from cep.lang.edit.fix import fixed
from cep.lang.load import load_text
from tests.lang.test_golden import DIAGNOSTICS, load


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
