"""The embedded engine gives the alerts of the replay for every cut, division, delay, save and restore of the day.

The same holds for patterns that feed patterns, for rules that read past events, and for ties in several micro-batches.
Alerts after a gap name it, or are as if it had not happened.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pytest

from cep.base.audit import is_audit
from cep.base.errors import StateCorruptError, UsageError
from cep.base.text import utc_ms
from cep.columnar.decode import KEY_SEPARATOR, decode_table
from cep.histories.store import Histories, segment_of
from cep.model.rule import ControlRecord, RetireRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded import engine as engine_module
from cep.runners.embedded import pages as pages_module
from cep.runners.embedded import replay as embedded
from cep.runners.embedded import shares
from cep.runners.embedded.engine import Engine, Stepped, Workers
from cep.runners.embedded.pages import PageAddress, StoredHistories
from cep.runners.handover.group_entries import SEGMENTS
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import STORE_GROUP, DurableStore, WriteBatch, prefix_range
from cep.step.job import ARRIVAL, Job
from tests.histories.test_store import random_block
from tests.runners.embedded.cases import MINUTE_MS, cut, day, decoded, deployment, expected, latest_ms, save
from tests.runners.laundering import circles, transfers
from tests.runners.laundering import records as laundering
from tests.runners.parity_cases import Stream, drawn, tied
from tests.runners.spark.live_cases import END, disordered, rules
from tests.runners.spark.test_live import NAMES, history_lines
from tests.runners.spark.test_live import records as history_rules
from tests.seeds import seeds

TIME_MS = 1_700_000_000_000
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
    monkeypatch.setattr(shares, "THREADS_EVENTS_MIN", 100)
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


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_another_engine_goes_on_from_what_was_saved(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other engine has other workers and a checkpoint of the store, without later changes of the first one."""
    monkeypatch.setattr(shares, "THREADS_EVENTS_MIN", 200)
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
    monkeypatch.setattr(engine_module, "PAGES_FACTOR", 256)
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


def test_runs_are_counted_when_rules_cease_to_share_their_first_steps() -> None:
    """A page is migrated with the next event of its key: starts that rules shared become runs of each of them."""
    base, chance = rules()["small_then_large"], Random(1)
    event = "event e {\n  id id\n  event_time time\n  card string\n  n int\n}\n"
    steps = "seq x -> y -> z within 1 h where x: e n > 0  y: e n > 1  z: e n =="
    records = [
        base.model_copy(
            update={"id": f"r{n}", "pattern": "p", "params": {}, "message": "{key}",
                    "source": f"{event}pattern p() by card {{ {steps} {-n} emit n = x.n }}\n"}
        )
        for n in range(1, 6)
    ]  # fmt: skip
    retired = [RetireRecord(id=f"r{n}", version=base.version + 1).to_json() for n in (1, 2)]
    deployed = deploy(records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    engine = Engine(job, tuple(record.to_json() for record in records), MemoryStore(), Workers(2))
    counters: Counter[str] = Counter()
    for number, controls in enumerate([(), tuple(retired), ()]):
        times = [TIME_MS + 1_000 * (100 * number + i) for i in range(100)]
        lines = [
            orjson.dumps({"id": str(ms), "event_time": ms, "card": chance.choice("abc"), "n": chance.randint(-4, 2)})
            for ms in times
        ]
        counters.update(engine.step(decoded(job, lines), controls, {"p": (times[-1], False)}).counters)
    assert counters["runs_orphaned"] > 0
    finish(engine, counters)
    assert [counters[name] for name in ("runs", *(f"rule_runs[r{n}@{base.version}]" for n in (3, 4, 5)))] == [0] * 4


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


CHAIN = tuple(record.to_json() for record in laundering())


def chain_job(lateness_ms: int, levels_count: int = 3) -> Job:
    deployment = deploy(laundering())
    return Job(deployment.schema, deployment.key_domains, 16, 1, lateness_ms, levels_count=levels_count)


def found_in(stepped: Stepped) -> dict[str, tuple[str, str, str, int]]:
    """Return alert id → (origin, via, target, time)."""
    matches = {}
    for alert in stepped.alerts.to_pylist():
        origin, target = alert["key"].split(KEY_SEPARATOR)
        at_ms = round(alert["detected_at"].timestamp() * 1_000)
        matches[alert["alert_id"]] = (origin, json.loads(alert["measures"])["via"], target, at_ms)
    return matches


@pytest.mark.parametrize(("workers", "lateness_ms"), [(1, 0), (3, 0), (2, 400_000)])
def test_circles_are_found_however_the_stream_is_cut(workers: int, lateness_ms: int, tmp_path: Path) -> None:
    table, random = transfers(3, 150), Random(workers)
    job = chain_job(lateness_ms)
    order = np.arange(len(table))
    if lateness_ms:
        times = np.array([round(t.timestamp() * 1_000) for t in table["event_time"].to_pylist()])
        order = np.argsort(times + np.array([random.randrange(lateness_ms) for _ in order]), kind="stable")
    cuts = [0, *sorted(random.sample(range(1, len(table)), 9)), len(table)]
    store = MemoryStore()
    engine = Engine(job, CHAIN, store, Workers(workers))
    matches: dict[str, tuple[str, str, str, int]] = {}
    counted, alerts = 0, 0
    for number, (first, end) in enumerate(pairwise(cuts)):
        part = table.take(order[first:end])
        decoded = decode_table(job.schema, part, str)
        stepped = engine.step([decoded], (), {"p": (int(decoded.time_ms.max()), False)})
        matches |= found_in(stepped)
        alerts += stepped.alerts.num_rows
        counted += stepped.counters["events"]
        if number % 3 == 1:
            save(engine, number)
            store.checkpoint(tmp_path / str(number))
            engine.close()
            store = MemoryStore.open(tmp_path / str(number))
            engine = Engine(job, CHAIN, store, Workers(workers))
            engine.restore()
    last = engine.step([], (END,), {})
    engine.close()
    matches |= found_in(last)
    assert set(matches.values()) == circles(table)
    assert len(matches) == alerts + last.alerts.num_rows, "no alert comes twice"
    assert counted == len(table)


def test_what_is_produced_may_belong_to_any_process() -> None:
    with pytest.raises(UsageError, match="one process"):
        Engine(chain_job(0), CHAIN, MemoryStore(), Workers(1, 0, 8))


def test_a_rule_without_a_stage_is_told_once() -> None:
    engine = Engine(chain_job(0, levels_count=2), CHAIN[:-1], MemoryStore(), Workers(1))
    stepped = engine.step([], (CHAIN[-1],), {})
    again = engine.step([], (END,), {})
    (refused,) = engine.rulebook.rulebook.report().refused
    engine.close()
    (letter,) = map(json.loads, stepped.dead_letters)
    assert (letter["code"], letter["rule_id"]) == ("control_refused", "circle")
    assert "--levels 3" in letter["reason"]
    assert stepped.counters["control_refused"] == 1
    assert again.dead_letters == ()
    assert refused.rule_id == "circle"


@pytest.mark.parametrize(
    ("pages", "page_bytes", "limit", "values"),
    [(1, None, None, None), (3, 20_000, None, None), (2, None, 12, None), (2, None, 12, 6)],
)
def test_past_events_give_the_alerts_of_the_replay(
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
        for module in ("sub_keys", "retained"):
            monkeypatch.setattr(f"cep.histories.{module}.HISTORY_VALUES_MAX", values)
    deployed = deployment(history_rules())
    lines = history_lines()[:9_000]
    job = Job(deployed.schema, deployed.key_domains, 16, pages)
    initial = tuple(record.to_json() for record in history_rules())
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
    pasts = StoredHistories(MemoryStore(), [b"account"], None)
    with pytest.raises(StateCorruptError, match="which the store lacks; restore a checkpoint"):
        pasts.read(PageAddress(0, 3, 1))


@pytest.mark.parametrize("knows", [False, True])
def test_a_page_that_ends_and_begins_again_leaves_nothing_behind(knows: bool) -> None:
    store, address = MemoryStore(), PageAddress(0, 3, 1)
    blocks = [segment_of(*random_block(np.random.default_rng(step), 100 * step, 10)) for step in range(3)]

    def saved(pasts: StoredHistories, count: int) -> StoredHistories:
        pasts.write(address, Histories(segments=tuple(blocks[:count])))
        batch = WriteBatch()
        pasts.save(batch)
        store.write(batch)
        return pasts if knows else StoredHistories(store, [b"account"], None)

    pasts = saved(StoredHistories(store, [b"account"], None), 3)
    assert len(list(store.scan(prefix_range(3, b"", SEGMENTS)))) == 3
    pasts.remove(address)
    pasts = saved(pasts, 1)
    assert len(list(store.scan(prefix_range(3, b"", SEGMENTS)))) == 1
    assert [segment.load().keys for segment in pasts.read(address).segments] == [blocks[0].load().keys]


def run_with_ties(
    lines: list[bytes], size: int, records: list[bytes], job: Job, *, restart: bool
) -> tuple[list[bytes], int]:
    """Return the alerts, sorted, and the counted ties of micro-batches of `size` lines."""
    store, counters = MemoryStore(), Counter[str]()
    alerts: list[bytes] = []
    engine = Engine(job, tuple(records), store, Workers(1))
    for commit, first in enumerate(range(0, len(lines), size), 1):
        piece = lines[first : first + size]
        stepped = engine.step(decoded(job, piece), (), {"p": (latest_ms(piece), False)})
        alerts += json_lines(stepped.alerts)
        counters.update(stepped.counters)
        if restart:
            save(engine, commit)
            engine.close()
            engine = Engine(job, tuple(records), store, Workers(1))
            engine.restore()
    stepped = engine.step([], (END,), {})
    engine.close()
    return sorted([*alerts, *json_lines(stepped.alerts)]), counters["ties_out_of_order"]


@pytest.mark.parametrize("seed", range(3))
def test_events_in_order_give_the_alerts_of_the_replay(seed: int, tmp_path: Path) -> None:
    stream = tied(seed)
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    lines, records = stream.lines[:120], [record.to_json() for record in stream.records]
    replayed = sorted(expected(lines, deployed, tmp_path))
    assert replayed
    assert run_with_ties(lines, 1 + 3 * seed, records, job, restart=False) == (replayed, 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_out_of_order_is_counted(seed: int, tmp_path: Path) -> None:
    """Two events of a millisecond are exchanged: the live job counts them, also after a restart."""
    stream, random = tied(seed), Random(seed)
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    lines, records = stream.lines[:60], [record.to_json() for record in stream.records]
    same = [n for n in range(len(lines) - 1) if time_of(lines[n]) == time_of(lines[n + 1])]
    first = random.choice(same)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    replayed = sorted(expected(lines, deployed, tmp_path))
    _, ties = run_with_ties(lines, 1, records, job, restart=seed == 0)
    assert ties == 1
    job_of_late = Job(deployed.schema, deployed.key_domains, 4, lateness_ms=1)
    assert run_with_ties(lines, 1, records, job_of_late, restart=False) == (replayed, 0), "with a lateness, ties meet"


def time_of(line: bytes) -> str:
    """Return the time of an event to the millisecond."""
    return str(orjson.loads(line)["event_time"])[:23]


HOUR_MS = 3_600_000


def unsuppressed(seed: int) -> Stream:
    """Return rules of a seed with histories, repeats, absences and time-outs, without suppression.

    Their histories are limited.
    """
    stream, records = drawn(seed, customers=10), list[ControlRecord]()
    for record in stream.records:
        assert isinstance(record, UpsertRecord)
        source = record.source.replace(", before = last(payment).amount", "")
        records.append(record.model_copy(update={"suppress": None, "source": source}))
    return Stream(stream.lines, records)


def make_engine(stream: Stream, *, is_audited: bool = False) -> Engine:
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4, 1, 0, is_audited=is_audited)
    return Engine(job, tuple(record.to_json() for record in stream.records), MemoryStore(), Workers(1))


@pytest.mark.parametrize("seed", seeds(24, 2))
def test_an_alert_after_a_gap_names_it_unless_nothing_of_it_could_matter(seed: int) -> None:
    stream, chance = unsuppressed(seed), Random(seed)
    whole, counters = make_engine(stream), Counter[str]()
    right = set(feed(whole, cut(stream.lines, 6, seed), counters) + finish(whole, counters))
    first = chance.randrange(len(stream.lines) // 4, len(stream.lines) // 2)
    end = first + chance.randrange(1, len(stream.lines) // 4)
    gone = stream.lines[first:end]
    engine = make_engine(stream)
    before = feed(engine, cut(stream.lines[:first], 3, seed), counters, 1)
    assert set(before) <= right
    now_ms = latest_ms(gone) + chance.choice((0, HOUR_MS))
    assert engine.accept_gaps({"p": (first, end)}, now_ms).counters == {"records_gone": end - first}
    save(engine, 9)
    again = Engine(engine.job, (), engine.store, Workers(1))  # the decision outlives the process
    again.restore()
    alerts = feed(again, cut(stream.lines[end:], 3, seed), counters) + finish(again, counters)
    wrong = list(map(orjson.loads, set(alerts) - right))
    assert all("history_from" in alert for alert in wrong)
    assert all(utc_ms(alert["history_from"]) > latest_ms(gone) for alert in wrong)
    later_ms = now_ms + 40 * 24 * HOUR_MS
    late = [alert for alert in map(orjson.loads, alerts) if utc_ms(alert["events"][0]["event_time"]) > later_ms]
    assert all("history_from" not in alert for alert in late), "no window is that long"


def test_the_audit_of_a_job_has_a_line_about_it() -> None:
    stream = unsuppressed(1)
    engine = make_engine(stream, is_audited=True)
    letters = list(engine.step([], (), {}).dead_letters)
    now_ms = latest_ms(stream.lines)
    letters += engine.accept_gaps({"p[1]": (5, 9), "p[0]": (7, 8)}, now_ms).dead_letters
    lines = [letter for letter in letters if is_audit(letter)]
    gap_line = orjson.loads(lines[-1])
    assert (gap_line["what"], gap_line["offsets"]) == ("gap", {"p[0]": [7, 8], "p[1]": [5, 9]})
    assert utc_ms(gap_line["history_from"]) == now_ms + (engine.job.ahead_ms or 0) + 1
    head = engine.audit_head()
    assert head is not None
    assert head["hash"] == gap_line["hash"]
    engine.close()
