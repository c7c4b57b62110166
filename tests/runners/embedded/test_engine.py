"""The embedded engine gives the alerts of the replay for every cut, division, delay, save and restore of the day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.runners.embedded import engine as engine_module
from cep.runners.embedded import pages as pages_module
from cep.runners.embedded import replay as embedded
from cep.runners.embedded import shares
from cep.runners.embedded.engine import Engine, Workers
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.keys import STORE_GROUP, prefix_range
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.step.job import ARRIVAL, Job
from tests.runners.embedded.cases import MINUTE_MS, cut, day, decoded, deployment, expected, latest_ms, save
from tests.runners.spark.live_cases import END, disordered, rules

GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
Open = Callable[[], DurableStore]


def make_job(lateness_ms: int = 0, pages: int = 1, order: str = "event_time", dedup_ms: int = 0) -> Job:
    return Job(GIVEN.schema, GIVEN.key_domains, 16, pages, lateness_ms, order=order, dedup_ms=dedup_ms)


def feed(
    engine: Engine, pieces: Sequence[Sequence[bytes]], counters: Counter[str], commit: int | None = None
) -> list[bytes]:
    """Return the alerts of all pieces, one micro-batch each; commit after each, with numbers from `commit` on."""
    alerts: list[bytes] = []
    for number, piece in enumerate(pieces):
        times = {"p": (latest_ms(piece), False)} if piece else {}
        stepped = engine.step(decoded(engine.job, piece), (), times)
        alerts += json_lines(stepped.alerts)
        counters.update(stepped.counters)
        if commit is not None:
            save(engine, commit + number)
    return alerts


def finish(engine: Engine, counters: Counter[str]) -> list[bytes]:
    stepped = engine.step([], (END,), {})
    counters.update(stepped.counters)
    engine.close()
    return list(json_lines(stepped.alerts))


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("workers", "pages", "lateness_ms", "order", "page_bytes"),
    [
        (1, 1, 0, "event_time", None),
        (2, 3, 0, ARRIVAL, 20_000),
        (3, 2, 10 * MINUTE_MS, "event_time", 20_000),
        (2, 1, MINUTE_MS, "event_time", None),
    ],
)
def test_the_alerts_of_the_replay_whatever_the_pieces(
    workers: int, pages: int, lateness_ms: int, order: str, page_bytes: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Some micro-batches are divided and some are not, and some pages stay open from one to the next.
    monkeypatch.setattr(shares, "EVENTS_ALONE", 100)
    monkeypatch.setattr(pages_module, "OPEN_MIN", 8 * workers)
    lines = list(day())
    arriving = disordered(lines, lateness_ms, seed=workers) if lateness_ms else lines
    with RocksStore(tmp_path / "rocks") as store:
        engine = Engine(
            make_job(lateness_ms, pages, order), INITIAL, store, Workers(workers, page_bytes_max=page_bytes)
        )
        counters: Counter[str] = Counter()
        alerts = feed(engine, cut(arriving, 40, seed=pages), counters, 1) + finish(engine, counters)
        assert engine.loads_count > 0 or page_bytes is None
    assert sorted(alerts) == sorted(expected(lines, GIVEN, tmp_path))
    assert len(alerts) > 20
    assert counters["late_events"] == 0
    assert counters["events"] == counters["records"] == len(lines)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_another_engine_goes_on_from_what_was_saved(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other engine has other workers and a checkpoint of the store, without later changes of the first one."""
    monkeypatch.setattr(shares, "EVENTS_ALONE", 200)
    monkeypatch.setattr(pages_module, "OPEN_MIN", 20)
    lines = disordered(list(day()), 5 * MINUTE_MS, seed=1)
    job = make_job(5 * MINUTE_MS, pages=2, dedup_ms=60 * MINUTE_MS)
    store: DurableStore = MemoryStore() if kind == "memory" else RocksStore(tmp_path / "0")
    counters: Counter[str] = Counter()
    alerts: list[bytes] = []
    engine = Engine(job, INITIAL, store, Workers(1, page_bytes_max=None if kind == "memory" else 30_000))
    for number, piece in enumerate(cut(lines, 5, seed=2)):
        # Each piece comes with the end of the one before: repeated records have no effect.
        alerts += feed(engine, cut(piece, 8, seed=number), counters, 1 + number * 10)
        target = tmp_path / f"{number + 1}"
        store.checkpoint(target)
        feed(engine, [piece[-50:], list(day(4))[:200]], Counter())
        engine.close()
        store.close()
        store = MemoryStore.open(target) if kind == "memory" else RocksStore(target)
        engine = Engine(job, INITIAL, store, Workers(1 + number, page_bytes_max=None if kind == "memory" else 30_000))
        engine.restore()
        again = feed(engine, [piece[-50:]], counters)
        assert again == []
    alerts += finish(engine, counters)
    store.close()
    assert sorted(alerts) == sorted(expected(list(day()), GIVEN, tmp_path))
    assert counters["duplicates"] == 5 * 50 - counters["late_events"]


def test_a_store_of_an_earlier_build_keeps_its_number_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier build did not store the number of pages."""
    lines, counters = list(day()), Counter[str]()
    store = MemoryStore()
    monkeypatch.setattr(engine_module, "PAGES_A_PART", 256)
    engine = Engine(make_job(pages=2), INITIAL, store, Workers(2))
    alerts = feed(engine, cut(lines[:1_000], 4, seed=1), counters, 1)
    engine.close()
    monkeypatch.undo()
    for key, value in list(store.scan(prefix_range(STORE_GROUP, b"", b"engine", b"times"))):
        head = orjson.loads(value)
        assert head.pop("pages") == 512
        store.put(key, orjson.dumps(head))
    for part in (lines[1_000:2_000], lines[2_000:]):
        engine = Engine(make_job(pages=2), INITIAL, store, Workers(3))
        engine.restore()
        alerts += feed(engine, cut(part, 4, seed=2), counters, 10 if part[0] == lines[1_000] else 20)
    alerts += finish(engine, counters)
    assert sorted(alerts) == sorted(expected(lines, GIVEN, tmp_path))


def test_processes_with_a_range_each_find_it_all_together(tmp_path: Path) -> None:
    lines, alerts = list(day()), []
    for first, end in ((0, 5), (5, 16)):
        engine = Engine(make_job(), INITIAL, MemoryStore(), Workers(2, first, end))
        alerts += feed(engine, cut(lines, 10, seed=1), Counter()) + finish(engine, Counter())
    assert sorted(alerts) == sorted(expected(lines, GIVEN, tmp_path))


def test_a_key_that_loses_partial_matches_is_named_in_a_job_and_in_a_replay(tmp_path: Path) -> None:
    one = orjson.loads(day()[0])
    dust = {**one, "status": "declined", "amount": "0.50", "card_id": "hot"}
    lines = [
        orjson.dumps({**dust, "tx_id": f"t{n}", "event_time": f"2026-03-01T10:00:00.{n // 1_000:03}{n % 1_000:03}Z"})
        for n in range(1_100)
    ]
    engine = Engine(make_job(), INITIAL, MemoryStore(), Workers(1))
    stepped = engine.step(decoded(engine.job, lines), (), {"p": (latest_ms(lines), False)})
    stepped = engine.step([], (END,), {}) if not stepped.dead_letters else stepped
    engine.close()
    letters = [orjson.loads(letter) for letter in stepped.dead_letters]
    assert {letter["code"] for letter in letters} == {"runs_evicted"}
    assert ("card_testing", "card_id", "hot") in {(one["rule_id"], one["key_domain"], one["key"]) for one in letters}
    assert sum(letter["runs"] for letter in letters) >= 100
    (tmp_path / "history.jsonl").write_bytes(b"\n".join(lines))
    replayed = embedded.replay(engine.job, GIVEN.rulebook, read_pieces(tmp_path / "history.jsonl", GIVEN.schema), 1)
    theirs = [orjson.loads(letter) for letter in replayed.dead_letters]
    assert runs_by_rule_and_key(theirs) == runs_by_rule_and_key(letters)


def runs_by_rule_and_key(letters: Sequence[dict[str, Any]]) -> Counter[tuple[str, str]]:
    runs: Counter[tuple[str, str]] = Counter()
    for letter in letters:
        runs[letter["rule_id"], letter["key"]] += letter["runs"]
    return runs
