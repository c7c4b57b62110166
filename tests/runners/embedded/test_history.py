"""Rules that read past events: the embedded engine equals the replay, cut anywhere, saved and restored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.pasts import Pasts, Place
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.step.job import Job
from tests.runners.embedded.cases import cut, deployment, expected
from tests.runners.embedded.test_engine import feed, finish
from tests.runners.spark.test_live_history import NAMES, history_lines, records


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("pages", "page_bytes", "limit", "values"),
    [(1, None, None, None), (3, 20_000, None, None), (2, None, 12, None), (2, None, 12, 6)],
)
def test_the_alerts_of_the_replay(
    pages: int,
    page_bytes: int | None,
    limit: int | None,
    values: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small limits fold windows and forget values: alerts say so, the same in both."""
    if limit is not None:
        monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", limit)
    if values is not None:
        for module in ("known_sub_keys", "remembered", "retained"):
            monkeypatch.setattr(f"cep.histories.{module}.HISTORY_VALUES_MAX", values)
    deployed = deployment(records())
    lines = history_lines()[:9_000]
    job = Job(deployed.schema, deployed.key_domains, 16, pages)
    initial = tuple(record.to_json() for record in records())
    store = RocksStore(tmp_path / "rocks") if page_bytes else MemoryStore()
    engine = Engine(job, initial, store, Workers(1, page_bytes_max=page_bytes))
    counters: Counter[str] = Counter()
    pieces = cut(lines, 12, seed=pages)
    alerts = feed(engine, pieces[:6], counters, 1)
    store.checkpoint(tmp_path / "saved")
    engine.close()
    store.close()
    again = RocksStore(tmp_path / "saved") if page_bytes else MemoryStore.open(tmp_path / "saved")
    engine = Engine(job, initial, again, Workers(2, page_bytes_max=page_bytes))
    engine.restore()
    alerts += feed(engine, pieces[6:], counters, 7) + finish(engine, counters)
    again.close()
    replayed = expected(lines, deployed, tmp_path)
    assert sorted(alerts) == sorted(replayed)
    has_marks = [any(name in line for line in replayed) for name in (b'"history_folded":true', b'"history_cut":true')]
    assert has_marks == [limit is not None, values is not None]
    for name in NAMES:
        assert any(name.encode() in line for line in replayed), name


def test_a_page_that_the_store_lacks_is_told() -> None:
    pasts = Pasts(MemoryStore(), [b"account"], None)
    with pytest.raises(StateCorruptError, match="which the store lacks; restore a checkpoint"):
        pasts.read(Place(0, 3, 1))
