"""The real Flink CEP and this engine, in the same run, on the same events: counts, checksums, and the ratio of speeds.

    FLINK_VENV=… python -m tests.bench.peer [EVENTS]

FLINK_VENV is a virtual environment with the peer (Java 17 with javac is needed too):

    python3 -m venv ENV && ENV/bin/pip install apache-flink-libraries numpy

 Flink runs its job with one task on the HashMap backend, the clock starts at its
first event; ours is one call of engine.advance on one core.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import peer_data


def write_events(columns: dict[str, Any], path: Path) -> None:
    """Write the events in the form of the peer's benchmark."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            writer.writerow(f"{v:.2f}" if isinstance(v, float) else v for v in row)


def run_peer(path: Path, tasks: int = 1, *more: str) -> dict[str, Any]:
    """Return the peer's own figures, by pattern; `more` are further options of its benchmark."""
    command = [
        str(peer_data.PEER / "run.sh"),
        "bench",
        "--events",
        str(path),
        "--parallelism",
        str(tasks),
        "--backend",
        "hashmap",
    ]
    result = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    if result.returncode:
        peer_data.stop(f"the peer's benchmark failed:\n{result.stderr[-2_000:]}")
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {one["pattern"]: one for one in reports}


def main() -> None:
    """Measure both and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    if not os.environ.get("FLINK_VENV"):
        peer_data.stop(
            "set FLINK_VENV to a virtual environment with the peer: "
            "python3 -m venv ENV && ENV/bin/pip install apache-flink-libraries numpy"
        )
    columns = peer_data.peer_columns(count)
    with tempfile.TemporaryDirectory() as folder:
        write_events(columns, Path(folder) / "events.csv")
        peer = run_peer(Path(folder) / "events.csv")
    batch, rows = peer_data.peer_batch(columns), []
    for title, names in {**{name: (name,) for name in peer_data.NAMES}, "all": peer_data.NAMES}.items():
        program = peer_data.peer_program(names)
        seconds = peer_data.median_seconds(lambda p=program: peer_data.run_once(p, batch))  # type: ignore[misc]
        answers = dict(zip(names, peer_data.by_rule(peer_data.run_once(program, batch), len(names)), strict=True))
        theirs = {name: tuple(answer) for name, answer in peer[title]["matches"].items()}
        rate, its_rate = count / seconds, peer[title]["events_per_s"]
        verdict = "equal" if answers == theirs else f"DIFFERENT: {answers} {theirs}"
        rows.append((title, f"{its_rate:,.0f}", f"{rate:,.0f}", f"{rate / its_rate:.1f}", verdict))
    head = ("pattern", "Flink CEP events/s", "ours events/s", "ours ÷ Flink", "matches and checksums")
    peer_data.show(f"{count:,} events, one task and one core, medians of 3", head, rows)


if __name__ == "__main__":
    main()
