"""Scenarios → the answers of the real Flink CEP, by way of the peer's own scripts next to the repository.

Needs Java 17 and a virtual environment with `apache-flink-libraries`, named by the environment variable FLINK_VENV.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.stages import is_negated, may_be_empty

PEER = Path(__file__).resolve().parents[2].parent / "shared" / "peers" / "flink"
# The peer answers a scenario with more matches than this with an error; it would show no more than a smaller one.
MATCHES_MAX = 300
# A library that runs for seconds does not gain from the slower, optimizing compiler.
_JAVA = "-Xmx2g -XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Json = Any


def is_there() -> bool:
    return (PEER / "run.sh").exists() and bool(os.environ.get("FLINK_VENV"))


def draft(seed: int, count: int) -> list[Json]:
    """Return random scenarios without answers; the same for the same seed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "draft.json"
        command = [sys.executable, str(PEER / "generate.py"), "draft", "--seed", str(seed), "--count", str(count)]
        subprocess.run([*command, "-o", str(out)], check=True)
        scenarios: list[Json] = json.loads(out.read_bytes())["scenarios"]
    return scenarios


def answered(scenarios: Sequence[Json], matches_max: int = MATCHES_MAX) -> list[Json]:
    """Return the scenarios with the library's answers as `expected`. One call starts one Java machine: pass many.

    The library gives up on a scenario after some seconds. The first scenario also pays for loading the library, so it
    is asked twice.
    """
    if not scenarios:
        return []
    with tempfile.TemporaryDirectory() as folder:
        questions, out = Path(folder) / "asked.json", Path(folder) / "answered.json"
        questions.write_text(json.dumps({"scenarios": [scenarios[0], *scenarios]}))
        command = ["bash", str(PEER / "run.sh"), "oracle", "fill", str(questions), str(out)]
        process = subprocess.run(
            [*command, "--max-matches", str(matches_max)],
            check=False,
            capture_output=True,
            text=True,
            env={"JAVA_OPTS": _JAVA, **os.environ},
        )
        if process.returncode != 0:
            raise RuntimeError(
                f"the library's program ended with {process.returncode}: {process.stderr.strip()[-2000:]}"
            )
        result: list[Json] = json.loads(out.read_bytes())["scenarios"][1:]
    return result


def would_hang(stages: Sequence[Mapping[str, Json]]) -> bool:
    """Whether the library may never answer: an unbounded loop over a group that can match nothing."""
    return any(
        "group" in stage
        and (
            (stage.get("times", (1, 1))[1] is None and all(is_negated(s) or may_be_empty(s) for s in stage["group"]))
            or would_hang(stage["group"])
        )
        for stage in stages
    )
