"""After the warm-up no job compiles: every kernel was called with every array type of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cep.demo.stream import StreamSize, build, json_lines
from cep.runners.warm import Warming

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


@pytest.mark.slow
@pytest.mark.always
def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"".join(line + b"\n" for line in json_lines(build(3, StreamSize(cards_count=50)).payments)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", PROGRAM, str(events), str(tmp_path / "alerts.jsonl")]
    process = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_it_can_be_ended() -> None:
    with closing(Warming()) as warming:
        assert not warming.is_done(0)
    assert warming.is_done(0)
