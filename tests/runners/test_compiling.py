"""The line about the first match comes once, and only during a match. On a terminal it moves.

A second process compiles exactly the kernels that the first match calls; the match is the same. After the warm-up no
job compiles: every kernel was called with every array type of jobs.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from numba import typeof
from numba.core import event

import cep
from cep.demo.stream import StreamSize, build, json_lines
from cep.engine import advance
from cep.kernels import layout as y
from cep.runners import ahead, compiling
from cep.runners.ahead import compile_one, compiled_ahead
from cep.runners.compiling import announce_compiling, announced_compiling
from cep.runners.warm import Warming
from tests.api.frames import EVENT, PATTERN, payments


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


NOT_PLAIN = PATTERN.replace("bait+ -> hit", "bait+ -> !hit").replace("hit.", "bait.")
# A match in a new process: prints the kernels that this process compiles itself, and the number of alerts.
FIRST_MATCH = """
import json
from numba.core import event
import cep
from tests.api.frames import EVENT, PATTERN, payments

class Compiled(event.Listener):
    names = []
    def on_start(self, e):
        self.names += [e.data["dispatcher"].__name__] if e.data else []
    def on_end(self, e):
        pass

event.register("numba:compile", Compiled())
alerts = cep.parse(EVENT + PATTERN).match(payments())
print(json.dumps([len(alerts), Compiled.names]))
"""


def types_of(monkeypatch: pytest.MonkeyPatch, number: int, work: Any) -> list[Any]:
    """Return the argument types with which a kernel of MATCHERS is called."""
    kernels: list[Any] = list(advance.MATCHERS)
    argument_types: list[Any] = []

    def call(*arguments: Any) -> int:
        argument_types.append(tuple(map(typeof, arguments)))
        return y.NOT_FULL

    call.__name__ = kernels[number].__name__
    kernels[number] = call
    with monkeypatch.context() as patch:
        patch.setattr(advance, "MATCHERS", tuple(kernels))
        patch.setattr(ahead, "MATCHERS", tuple(kernels))
        work()
    return argument_types


@pytest.mark.parametrize(("number", "pattern"), [(0, PATTERN), (1, NOT_PLAIN)])
def test_it_compiles_for_the_types_of_a_match(monkeypatch: pytest.MonkeyPatch, number: int, pattern: str) -> None:
    rules = cep.parse(EVENT + pattern)
    of_match = types_of(monkeypatch, number, lambda: rules.match(payments(), cores=1))
    of_ahead = types_of(monkeypatch, number, lambda: compile_one(advance.MATCHERS[number].__name__))
    assert len(of_ahead) == 1
    assert set(of_match) == set(of_ahead)


def test_nothing_is_started_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stats:
        cache_path = str(tmp_path)

    class Kernel:
        __name__ = "carry"
        signatures: tuple[str, ...] = ()
        stats = Stats()

    begun: list[list[str]] = []
    monkeypatch.setattr(ahead, "_start_process", begun.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    kernel = Kernel()
    with compiled_ahead([kernel, kernel, len]):
        pass
    (tmp_path / "rules.carry-7.py311.nbi").touch()
    with compiled_ahead([kernel]):
        pass
    assert begun == [["carry"]]


@pytest.mark.slow
def test_the_first_match_compiles_one_kernel_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "CEP_KERNEL_CACHE": str(tmp_path)}
    words = [sys.executable, "-c", FIRST_MATCH]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert process.returncode == 0, process.stderr
    alerts, compiled = json.loads(process.stdout)
    assert alerts == len(cep.parse(EVENT + PATTERN).match(payments()))
    assert "evaluate_blocks" in compiled
    assert "advance_plain_rules" not in compiled


ROOT = Path(__file__).parents[2]
# It runs in a separate process, because other tests have called kernels here.
PROGRAM = """
import sys
from cep.runners.warm import warm_up

def kernels():
    found = []
    for name, module in list(sys.modules.items()):
        rooms = ("engine", "functions", "histories", "columnar", "state", "sinks", "step", "runners")
        if name.startswith(tuple(f"cep.{room}." for room in rooms)):
            found += vars(module).values()
            own = getattr(module, "kernels", None)
            found += [v for v in vars(own).values() if getattr(v, '__module__', '') == own.__name__] if own else []
    return {f.__name__: len(f.signatures) for f in found if hasattr(f, "signatures") and f.__name__[0] != "_"}

warm_up()
compiled = kernels()
assert len(compiled) > 12, compiled
assert all(compiled.values()), compiled

from cep.cli.main import main
sys.argv = ["cep", "replay", "--engine", "embedded", "--rules", "rules", "--events", sys.argv[1], "--out", sys.argv[2]]
assert main() == 0
after = kernels()
assert after == compiled, [(name, compiled[name], count) for name, count in after.items() if count != compiled[name]]
"""


def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"".join(line + b"\n" for line in json_lines(build(3, StreamSize(cards_count=50)).payments)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", PROGRAM, str(events), str(tmp_path / "alerts.jsonl")]
    process = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_it_can_be_ended() -> None:
    with closing(Warming()) as warming:
        assert not warming.wait_until_done(0)
    assert warming.wait_until_done(0)
