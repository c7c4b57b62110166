"""Counters that hardly any job moves, each by its name: a soak test reads this list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cep.base.limits import TIME_MS_MAX
from cep.columnar.decode import concat_decoded
from cep.columnar.route import route
from cep.rulebook.deploy import deploy
from cep.rulebook.suppression import LastAlerts
from cep.sources.pieces import read_pieces
from cep.step.match import MatchOutput, match_events
from cep.step.programs import programs_by_level
from cep.step.suppress import filter_alerts
from cep.step.validate import validate_events
from tests.rulebook.test_suppression import alert, table
from tests.runners.laundering import records, transfers
from tests.step.contract import RULES, read_events
from tests.step.test_suppress import POLICIES

AT_MS = 1_767_225_600_000


def test_suppression_that_is_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.rulebook.suppression.FIRED_MAX", 1)
    memory = LastAlerts()
    alerts = table(alert(1, 5_000, key="first"), alert(2, 5_100, key="second"))
    assert filter_alerts(alerts, POLICIES, memory, 4_000).counters["fired_forgotten"] == 1
    assert list(memory.last) == [("a", "second")], "the one that is over first is forgotten"


def test_events_behind_the_cut_of_a_replay() -> None:
    read = read_events(*(f"t{second} c@{AT_MS + second * 1_000} 5" for second in range(5)))
    valid = validate_events(replace(RULES.job, ends_ms=AT_MS + 3_000), read)
    assert valid.counters["events_after_end"] == 2
    assert valid.batches[0].event_id.to_pylist() == ["t0", "t1", "t2"]


def test_origins_beyond_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cep.engine.origins.ORIGINS_MAX", 1)
    deployment = deploy(records())
    schema = deployment.schema
    pq.write_table(transfers(1, 120), tmp_path / "t.parquet")
    decoded = [piece.decode() for piece in read_pieces(tmp_path / "t.parquet", schema).pieces]
    output = MatchOutput()
    for programs in programs_by_level(deployment.rulebook, schema)[:-1]:
        for domain, program in programs.items():
            events = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
            match_events(program, None, events, TIME_MS_MAX, output)
        decoded += output.produced
    assert output.counters["origins_dropped"] > 0
