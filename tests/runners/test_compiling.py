"""The line about the first match comes once, and only during a match. On a terminal it moves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from numba.core import event

from cep.runners import compiling
from cep.runners.compiling import announce_compiling, announced_compiling


@pytest.fixture(autouse=True)
def _quiet_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silence the line of a verb that an earlier test has run in this process."""
    earlier = list(compiling._OURS)
    for line in earlier:
        event.unregister("numba:compile", line)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(compiling, "_OURS", [])
    yield
    for line in earlier:
        event.register("numba:compile", line)  # type: ignore[no-untyped-call]


def compile_something() -> None:
    with event.trigger_event("numba:compile"):
        pass


def test_it_is_said_once_and_only_inside(capsys: pytest.CaptureFixture[str]) -> None:
    compile_something()
    with announced_compiling():
        assert capsys.readouterr().err == ""
        compile_something()
        compile_something()
    compile_something()
    assert capsys.readouterr().err.count("cep: compiling the matcher") == 1


def test_a_terminal_has_a_line_that_moves_and_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(compiling, "_BETWEEN_S", -1.0)
    monkeypatch.setattr(compiling, "_TICK_S", 900.0)
    with announced_compiling(), event.trigger_event("numba:compile"):  # compiles another kernel first
        compile_something()
    drawn = capsys.readouterr().err
    assert "\n" not in drawn
    lines = drawn.split("\r")
    assert [line.split(": ")[-1] for line in lines if line.strip()] == ["1 parts, 0 s", "2 parts, 0 s"]
    assert lines[-1] == ""
    assert lines[-2].isspace()
    assert len(lines[-2]) == len(lines[-3])


def test_it_moves_while_one_part_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(compiling, "_TICK_S", 0.001)
    drawn: list[str] = []
    moved = threading.Event()

    def draw(_: object, text: str) -> None:
        drawn.append(text)
        if len(drawn) > 3:
            moved.set()

    monkeypatch.setattr(compiling._Compiling, "_draw", draw)
    with announced_compiling(), event.trigger_event("numba:compile"):
        assert moved.wait(60)
    assert drawn[-1] == ""
    assert all(": 1 parts, " in line for line in drawn[:-1])


def test_a_verb_says_it_once_however_often_it_matches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_OURS", [])
    announce_compiling()
    announce_compiling()
    try:
        with announced_compiling():
            compile_something()
    finally:
        event.unregister("numba:compile", compiling._OURS[0])  # type: ignore[no-untyped-call]
    assert capsys.readouterr().err.count("cep: compiling the matcher") == 1
