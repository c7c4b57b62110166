"""Records out of order, twice, late or broken, in several partitions: `cep run` equals the replay of the good events.

The same check on Spark and Kafka (tests/runners/spark/test_live_kafka.py) has the same streams; a topic is a list.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink
from cep.sources.live.base import Chunk, Positions
from cep.sources.live.files import FilesSource
from tests.runners.embedded.cases import deployment, expected
from tests.runners.spark.live_cases import END, make_job, payments, rules, write_file
from tests.runners.spark.live_kafka import mix
from tests.seeds import LATER, RELEASE

LATENESS_MS = 90_000
DEDUP_MS = 86_400_000  # neighbouring records may be hours apart in event time


class Lanes:
    """Partitions of a topic as lists; each poll gives some records of some of them."""

    def __init__(self, records: list[tuple[int, bytes]], partitions: int, random: np.random.Generator) -> None:
        self._lanes = {f"t[{p}]": [value for partition, value in records if partition == p] for p in range(partitions)}
        self._at: Positions = dict.fromkeys(self._lanes, 0)
        self._random = random

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        chunks = []
        for lane, values in self._lanes.items():
            position = self._at[lane]
            lane_values = values[position : position + int(self._random.integers(0, records_max))]
            if lane_values:
                chunks.append(Chunk(lane, pa.array(lane_values, pa.large_binary())))
                self._at[lane] += len(lane_values)
        return chunks

    def positions(self) -> Positions:
        return dict(self._at)

    def seek(self, positions: Mapping[str, int]) -> None:
        self._at.update(positions)

    def hold(self, lanes: Collection[str]) -> None:
        """Ignore the request to hold lanes."""

    def behind(self) -> dict[str, bool]:
        return {lane: self._at[lane] < len(values) for lane, values in self._lanes.items()}

    @property
    def ended(self) -> bool:
        return False

    def look(self) -> None:
        """All lanes are known already."""

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("seed", "partitions", "lateness_ms"),
    [
        pytest.param(1, 4, LATENESS_MS, marks=LATER),
        pytest.param(2, 3, 0, marks=LATER),
        *(
            pytest.param(seed, 1 + seed % 4, LATENESS_MS * (seed % 2), marks=LATER if seed < 5 else RELEASE)
            for seed in range(3, 15)
        ),
    ],
)  # fmt: skip
def test_a_mix_of_everything_gives_what_replay_finds(
    seed: int, partitions: int, lateness_ms: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    lines = payments(40 + seed)
    stream = mix(lines, seed, partitions, lateness_ms)
    rules_by_id = rules()
    job = replace(make_job(rules_by_id.values(), lateness_ms), dedup_ms=DEDUP_MS)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    (tmp_path / "control").mkdir()
    for number in range(3):  # the second start and later ones have already read the records of the first phase
        sent = stream.first if number == 0 else [*stream.first, *stream.second]
        if number == 2:
            write_file(tmp_path / "control" / "end.jsonl", [END], 0)
        commits = Commits(StoreSettings(tmp_path / "job", "memory"))
        engine = Engine(job, initial, commits.store, Workers(int(random.integers(1, 4))))
        sources = Sources(Lanes(sent, partitions, random), FilesSource(tmp_path / "control", follow=True))
        outlets = Outlets([FileSink(tmp_path / "alerts")], DeadLetterFiles(tmp_path / "letters"))
        pace = Pace(records_max=int(random.integers(20, 800)))
        Runner(engine, sources, outlets, commits, pace).run(threading.Event(), until_end=True)
        for opened in (sources, outlets, engine, commits):
            opened.close()
    alerts = [line for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()]
    assert sorted(alerts) == sorted(expected(stream.clean, deployment(rules_by_id.values()), tmp_path))
    totals, wrong = commits.totals, stream.wrong
    assert (totals["duplicates"], totals["late_events"]) == (wrong["duplicates"], wrong["late_events"])
    assert sum(n for name, n in totals.items() if name.startswith("poison[")) == wrong["poison"]
    bad = sum(wrong[name] for name in ("duplicates", "late_events", "reused_ids"))
    assert totals["events"] == len(stream.clean) + bad
    assert totals["reused_ids"] == wrong["reused_ids"]
    letters = [
        orjson.loads(line) for path in (tmp_path / "letters").iterdir() for line in path.read_bytes().splitlines()
    ]
    late = {letter["event_id"] for letter in letters if letter["code"] == "late"}
    assert len(late) == wrong["late_ids"]
