"""Rules that feed others come, change, pause and go while a job runs.

No run, history or shared start of another rule is lost by it. A job equals a replay with the same control records, for
every cut and restart; a replay refuses the same rules by the same letters, such as a rule without a free level. An
alert because an event was not produced says since when that is known. An alert without such a time is also found if
every rule has been there, and has seen events, for ever.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.limits import TIME_MS_MAX
from cep.base.text import utc_text
from cep.columnar.decode import KeyDomain
from cep.model.rule import ControlRecord, PauseRecord, ResumeRecord, RetireRecord, RollbackRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy, deploy_to_job
from cep.rulebook.rulebook import Rulebook, levels_needed
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.spark.replay import read_events, replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.step.job import Job
from cep.step.rules import refusal_dead_letters
from tests.runners.embedded.cases import decoded, save
from tests.runners.spark.live_cases import END, LiveRun, time_ms
from tests.runners.test_later_rules import written

EVENTS = """
event payment { tx_id id  event_time time  card string  shop string  amount int }
event flag { flag_id id  event_time time  card string  shop string }
event echo { echo_id id  event_time time  card string }
"""
LEVELS = 4
MAKERS = {
    "drop": "by card { seq a -> b within 20 s where a: payment amount > 5 b: payment amount < 3 skip none "
    "emit card = b.card, shop = b.shop produce flag }",
    "quiet": "by shop { seq a -> !b within 15 s where a: payment amount > 6 b: payment amount < 2 skip none "
    "emit card = a.card, shop = a.shop produce flag }",
    "alone": "by card { seq f -> !g within 10 s where f: flag g: flag shop == f.shop skip none emit card = f.card "
    "produce echo }",
    "heard": "by card { seq p -> f within 90 s where p: payment amount > 4 f: flag skip none emit card = f.card "
    "produce echo }",
}
# Rules that read derived events. They are always there, and also begin matches with the source's events.
READERS = {
    "paid_flag": "by card { seq a -> f within 2 min where a: payment amount > 4 f: flag skip none }",
    "paid_echo": "by card { seq a -> e within 3 min where a: payment amount > 6 e: echo skip none }",
    "absent": "by card { seq a -> !f within 40 s where a: payment f: flag skip none }",
    "timely": "by shop { seq a -> f -> c within 90 s where a: payment f: flag c: payment amount > 7 skip none "
    "emit n = count(f) on timeout emit n = count(f) }",
    "busy": "by card { seq a -> b within 60 s where a: payment count(payment over 2 min) >= 3 b: payment "
    "count(flag over 1 min) == 0 and amount > 5 skip none }",
    "held": "by card { seq a -> f within 2 min where a: payment sum(payment.amount over 3 min) > 9 f: flag skip none }",
    **{
        f"alike{number}": "by card { seq a -> b -> c within 2 min where a: payment amount > 3 b: payment amount < 6 "
        f'c: flag shop == "{"st"[number % 2]}" skip none }}'
        for number in range(4)
    },
}
TOP = {"topmost": "by card { seq e -> p within 2 min where e: echo p: payment skip none }"}
SOURCE = EVENTS + "\n".join(f"pattern {name} {body}" for name, body in (MAKERS | READERS | TOP).items())


# Producers and readers whose alerts depend on events that were not produced.
GAP_MAKERS = {
    "many": "by card { seq a where a: payment count(payment over 40 s) >= 3 skip none "
    "emit card = a.card, shop = a.shop produce flag }",
    "few": "by card { seq a where a: payment count(payment over previous 25 s) == 0 "
    "emit card = a.card, shop = a.shop produce flag }",
    "again": "by card { seq f where f: flag count(flag over 20 s) >= 2 skip none emit card = f.card produce echo }",
    **{name: MAKERS[name] for name in ("drop", "quiet", "alone")},
}
GAP_READERS = {
    "absent": "by card { seq a -> !f within 10 s where a: payment f: flag skip none }",
    "counted": "by card { seq a where a: payment count(flag over 30 s) <= 1 skip none }",
    "of_a_day": 'by card { seq a where a: payment count(flag over hour in "Europe/Paris") < 3 skip none }',
    "missed": "by card { seq a -> !e -> c within 30 s where a: payment e: echo c: payment skip none }",
    "after": "by card { seq f, p within 30 s where f: flag p: payment skip none }",
    "some": "by shop { seq a -> f* -> c within 20 s where a: payment amount > 6 f: flag c: payment amount < 3 "
    "skip none emit n = count(f) }",
    "bound": "by card { seq f -> p within 20 s where f: flag p: payment amount > 7 skip none }",
}
GAP_SOURCE = EVENTS + "\n".join(f"pattern {name} {body}" for name, body in (GAP_MAKERS | GAP_READERS).items())
START_MS = 1_700_000_000_000
Make = Callable[[str, int], UpsertRecord]
Later = list[tuple[int, ControlRecord]]  # each record has the number of the next line


def rule(name: str, version: int = 1, effective_ms: int | None = None, source: str = SOURCE) -> UpsertRecord:
    record = written(name, source, name, None if effective_ms is None else utc_text(effective_ms))
    return record.model_copy(update={"version": version})


def gap_rule(name: str, effective_ms: int | None = None) -> UpsertRecord:
    return rule(name, 1, effective_ms, GAP_SOURCE)


def job_of(rules: list[UpsertRecord], groups: int = 4, levels: int = LEVELS) -> Job:
    deployment = deploy(rules)
    assert deployment.set_aside == ()
    return Job(deployment.schema, deployment.key_domains, groups, 1, levels_count=levels)


def all_rules() -> list[UpsertRecord]:
    return [rule(name) for name in MAKERS | READERS | TOP]


def lines_of(random: Random, count: int, start_ms: int, name: str) -> list[bytes]:
    times = np.cumsum([random.choice((0, 700, 3_000, 9_000, 12_000, 33_000)) for _ in range(count)]) + start_ms
    return [
        orjson.dumps(
            {"event_type": "payment", "tx_id": f"{name}{number:04}", "event_time": utc_text(int(ms)),
             "card": random.choice("xy"), "shop": random.choice("st"), "amount": random.randint(0, 9)}
        )
        for number, ms in enumerate(times)
    ]  # fmt: skip


def lived(
    job: Job, initial: list[UpsertRecord], later: Later, lines: list[bytes], random: Random, folder: Path | None,
    cuts_count: int = 14,
) -> tuple[list[bytes], list[bytes]]:  # fmt: skip
    """Return the alerts and refusal letters of a job that is cut anywhere.

    With a folder, it restarts now and then, from memory or RocksDB.
    """
    store: DurableStore = MemoryStore() if folder is None or random.random() < 0.5 else RocksStore(folder / "first")
    first_records = as_json(initial)
    engine = Engine(job, first_records, store, Workers(random.randint(1, 2)))
    cuts = sorted({0, len(lines), *(line for line, _ in later), *random.sample(range(1, len(lines)), cuts_count)})
    tables: list[pa.Table] = []
    letters: list[bytes] = []
    for number, (start, end) in enumerate(pairwise(cuts)):
        records = tuple(record.to_json() for line, record in later if line == start)
        stepped = engine.step(decoded(job, lines[start:end]), records, {"p": (time_ms(lines[end - 1]), False)})
        assert stepped.counters["late_events"] == 0
        tables.append(stepped.alerts)
        letters += stepped.dead_letters
        if folder is not None and random.random() < 0.4:
            save(engine, number)
            store.checkpoint(folder / str(number))
            engine.close()
            kind = MemoryStore.open if isinstance(store, MemoryStore) else RocksStore
            store = kind(folder / str(number))
            engine = Engine(job, first_records, store, Workers(random.randint(1, 2)))
            engine.restore()
    tables.append(engine.step([], (END,), {}).alerts)
    engine.close()
    return sorted(json_lines(pa.concat_tables(tables))), letters


def replayed(job: Job, records: Sequence[ControlRecord], lines: list[bytes], folder: Path) -> list[bytes]:
    rulebook = Rulebook(job.schema, job.domains)
    for record in records:
        assert rulebook.apply(record, None).kind == "applied"
    return replayed_book(job, rulebook, lines, folder)


def replayed_book(job: Job, rulebook: Rulebook, lines: list[bytes], folder: Path) -> list[bytes]:
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    # The live jobs of the tests get a watermark at the end of time, and so does the replay.
    whole = replace(job, to_the_end=True)
    return sorted(json_lines(embedded.replay(whole, rulebook, read_pieces(path, job.schema), 1).alerts))


def by_id(alerts: list[bytes]) -> dict[str, dict[str, Any]]:
    return {alert["alert_id"]: alert for alert in map(orjson.loads, alerts)}


def by_rule(alerts: list[bytes]) -> set[str]:
    return {orjson.loads(alert)["rule_id"] for alert in alerts}


def time_in(alert: dict[str, object], name: str) -> int:
    return time_ms(orjson.dumps({"event_time": alert[name]}))


def starts(random: Random, lines: list[bytes]) -> tuple[int, int]:
    """Return a line that is later than the line before, and a time up to which no event is known at that line."""
    line = random.choice([n for n in range(5, len(lines)) if time_ms(lines[n]) > time_ms(lines[n - 1]) + 1])
    return line, random.randint(time_ms(lines[line - 1]) + 1, time_ms(lines[line]))


@pytest.mark.parametrize("seed", range(12))
def test_an_alert_that_says_nothing_lacks_nothing(seed: int, tmp_path: Path) -> None:
    random = Random(f"made {seed}")
    before, lines = lines_of(random, 60, START_MS - 900_000, "b"), lines_of(random, 150, START_MS, "e")
    before = [line for line in before if time_ms(line) < START_MS]
    job = job_of([gap_rule(name) for name in GAP_MAKERS | GAP_READERS], levels=3)
    there = [random.choice(("many", "few", "drop", "quiet")), random.choice(("again", "alone"))][seed % 3 :]
    coming = random.sample(sorted(GAP_MAKERS.keys() - set(there)), random.randint(1, 4))
    effective = {name: starts(random, lines) for name in coming}
    records = {name: gap_rule(name, effective[name][1]) for name in coming}
    initial = [gap_rule(name) for name in (*there, *GAP_READERS)]
    random.shuffle(initial)
    order = sorted(coming, key=lambda name: effective[name][::-1])
    later: Later = [(effective[name][0], records[name]) for name in order]
    alerts, other_alerts = (
        by_id(lived(job, initial, later, lines, random, None, random.randint(1, 12))[0]) for _ in range(2)
    )
    assert alerts == other_alerts, "cut otherwise"
    whole = {name: alert for name, alert in alerts.items() if "history_from" not in alert}
    lacking = 0
    for count in range(len(order) + 1):  # after so many of them have come
        rules = [*initial, *(gap_rule(name) for name in order[:count])]
        ideal = by_id(replayed(job, rules, [*before, *lines], tmp_path))
        from_ms, until_ms = ([0, *(effective[name][1] for name in order), TIME_MS_MAX])[count : count + 2]
        here = {name for name, alert in alerts.items() if from_ms <= time_in(alert, "detected_at") < until_ms}
        assert here & whole.keys() <= ideal.keys()
        assert all(whole[name]["measures"] == ideal[name]["measures"] for name in here & whole.keys())
        lacking += len(here - ideal.keys())
    assert lacking, "some are found because something was not there"
    # A replay with the same records gives the same, except for past events that were not stored for later rules.
    replayed_alerts = by_id(replayed(job, [*initial, *(records[name] for name in order)], lines, tmp_path))
    assert whole.keys() <= replayed_alerts.keys()
    if not {"many", "few", "again"} & set(coming):  # these read past events
        assert alerts == replayed_alerts


def test_a_pause_of_a_producer_begins_it_anew_and_one_that_is_retired_says_nothing(tmp_path: Path) -> None:
    random = Random("pause")
    job, lines = (
        job_of([gap_rule(name) for name in GAP_MAKERS | GAP_READERS], levels=3),
        lines_of(random, 150, START_MS, "e"),
    )
    initial = [gap_rule(name) for name in ("drop", "quiet", *GAP_READERS)]
    turn = [time_ms(lines[number]) for number in (40, 70, 110)]
    changes: list[ControlRecord] = [
        PauseRecord(id="drop", version=1, effective_at=utc_text(turn[0])),
        ResumeRecord(id="drop", version=2, effective_at=utc_text(turn[1])),
        RetireRecord(id="drop", version=2, effective_at=utc_text(turn[2])),
    ]
    alerts = by_id(lived(job, initial, [(0, change) for change in changes], lines, random, None)[0])
    absent = [alert for alert in alerts.values() if alert["rule_id"] == "absent"]
    for alert in absent:
        start, detected = time_in(alert, "match_start"), time_in(alert, "detected_at")
        lacks = {START_MS} if start - 20_000 < START_MS and detected < turn[0] else set()
        lacks |= {turn[1]} if turn[1] <= detected < turn[2] and start - 20_000 < turn[1] else set()
        since = time_ms(lines[0])
        lacks = {max(ms, since) for ms in lacks} | ({since} if start - 15_001 < since else set())
        assert alert.get("history_from") == (utc_text(max(lacks)) if lacks else None), alert
    assert {alert.get("history_from") for alert in absent} >= {None, utc_text(turn[1])}


@dataclass
class Changes:
    """The rules so far: by name their first version, their newest version, and the number of their last switch."""

    first: dict[str, UpsertRecord]
    switches: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.first, 1)

    def next(
        self, random: Random, name: str, kinds: Sequence[str], moments_ms: tuple[int, int], make: Make
    ) -> ControlRecord:
        """Draw a change between two times. `make` returns an upsert of the rule with a version."""
        effective_at = utc_text(random.randint(*moments_ms))
        drawn_kind = random.choice(kinds)
        kind = drawn_kind if name in self.versions else "upsert"
        on_update: Literal["drain", "restart", "carry"] = random.choice(("drain", "restart", "carry"))
        if kind in ("pause", "resume"):
            self.switches[name] += 1
            record_class = PauseRecord if kind == "pause" else ResumeRecord
            return record_class(id=name, version=self.switches[name], effective_at=effective_at)
        version = self.versions[name] = self.versions.get(name, 0) + 1
        if kind == "retire":
            return RetireRecord(id=name, version=version, effective_at=effective_at)
        if kind == "rollback":
            back = self.first[name]
            return RollbackRecord(
                id=name, version=version, effective_at=effective_at, to_version=back.version, rule=back,
                on_update=on_update,
            )  # fmt: skip
        record = make(name, version).model_copy(update={"effective_at": effective_at, "on_update": on_update})
        self.first.setdefault(name, record)
        return record


def timeline(random: Random, lines: list[bytes], there: set[str], count: int) -> Later:
    """Return changes of the makers; each starts after the last line."""
    changes, records = Changes({name: rule(name) for name in there}), list[tuple[int, ControlRecord]]()
    for line in sorted(random.sample(gaps_of(lines), count)):
        name = random.choice(sorted(MAKERS))
        kinds = ("upsert", "retire", "pause", "resume", "rollback")
        moments_ms = (time_ms(lines[line - 1]) + 1, time_ms(lines[line]))
        records.append((line, changes.next(random, name, kinds, moments_ms, rule)))
    return records


def gaps_of(lines: list[bytes]) -> list[int]:
    """Return the lines that are later than the line before."""
    return [n for n in range(3, len(lines)) if time_ms(lines[n]) > time_ms(lines[n - 1]) + 1]


def drawn(random: Random) -> tuple[list[UpsertRecord], Later, list[bytes]]:
    """Return first rules, their later changes, and events. Every rule that reads derived events is there."""
    lines = lines_of(random, 130, START_MS, "e")
    there = set(random.sample(sorted(MAKERS), random.randint(0, 2)))
    initial = [rule(name) for name in (*there, *READERS, *TOP)]
    random.shuffle(initial)
    return initial, timeline(random, lines, there, random.randint(3, 9)), lines


@pytest.mark.parametrize("seed", range(6))
def test_a_job_finds_what_a_replay_with_the_same_records_finds(seed: int, tmp_path: Path) -> None:
    random = Random(f"levels {seed}")
    job, (initial, later, lines) = job_of(all_rules()), drawn(random)
    alerts, letters = lived(job, initial, later, lines, random, tmp_path)
    assert letters == []
    assert lived(job, initial, later, lines, random, None) == (alerts, []), "cut otherwise"
    assert alerts == replayed(job, [*initial, *(record for _, record in later)], lines, tmp_path)
    assert len(by_rule(alerts)) >= 4


def test_a_rule_that_nothing_feeds_yet_keeps_its_runs_when_something_does(tmp_path: Path) -> None:
    """The run begins with a payment before any rule produces flags, and ends with its flag.

    A rule between the two comes, pauses and goes without an effect.
    """
    amounts = (9, 4, 4, 8, 1, 9, 1, 9, 1)
    lines = [
        orjson.dumps(
            {"event_type": "payment", "tx_id": f"t{n}", "event_time": utc_text(START_MS + 5_000 * n), "card": "x",
             "shop": "s", "amount": amount}
        )
        for n, amount in enumerate(amounts)
    ]  # fmt: skip
    job, initial = job_of(all_rules()), [rule("paid_flag"), rule("paid_echo"), rule("heard")]
    records: list[ControlRecord] = [
        rule("drop", 1, START_MS + 15_000),
        PauseRecord(id="drop", version=1, effective_at=utc_text(START_MS + 25_000)),
        ResumeRecord(id="drop", version=2, effective_at=utc_text(START_MS + 35_000)),
        RetireRecord(id="heard", version=2, effective_at=utc_text(START_MS + 36_000)),
    ]
    later = list(zip((3, 5, 7, 8), records, strict=True))
    alerts, letters = lived(job, initial, later, lines, Random(0), None, len(lines) - 1)
    assert letters == []
    assert alerts == replayed(job, [*initial, *records], lines, tmp_path)
    bound = {tuple(e["event_id"].split("~")[0] for e in a["events"]) for a in map(orjson.loads, alerts)}
    assert ("t0", "t4") in bound, "t0 came before the rule that produces what its run waits for"


def as_json(records: Sequence[ControlRecord]) -> tuple[bytes, ...]:
    return tuple(record.to_json() for record in records)


def lived_on_spark(live: LiveRun, later: Later, lines: list[bytes]) -> LiveRun:
    """Run a phase for each change and for the events before the next one."""
    for start, end in pairwise(sorted({0, len(lines), *(line for line, _ in later)})):
        records = [record.to_json() for line, record in later if line == start]
        if records:
            live.phase([], records)
        live.phase([lines[start:end]])
    live.phase([], [END])
    return live


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    random = Random("levels on Spark")
    job, (initial, later, lines) = job_of(all_rules(), 2), drawn(random)
    live = lived_on_spark(LiveRun(spark, tmp_path / "live", job, as_json(initial), 1), later, lines)
    assert live.letters == []
    assert sorted(live.alerts()) == replayed(job, [*initial, *(record for _, record in later)], lines, tmp_path)


TYPES = EVENTS + "event ring { ring_id id  event_time time  card string }\n"
# Each rule is a chain of the rules before it: payment, flag, echo, ring; some rules are shortcuts.
RULES = {
    "rung": "by card { seq e -> p within 90 s where e: echo p: payment skip none emit card = p.card produce ring }",
    "short": "by card { seq a where a: payment amount == 9 emit card = a.card produce ring }",
    "ringing": "by card { seq r -> p within 60 s where r: ring p: payment skip none }",
    "plain": "by card { seq a -> b within 30 s where a: payment amount > 7 b: payment amount > 8 skip none }",
    **{name: MAKERS[name] for name in ("drop", "quiet", "heard")},
    **{name: READERS[name] for name in ("paid_flag", "paid_echo", "absent", "timely")},
}
# It reads past events, so it is there from the beginning: incomplete histories have their own tests.
ALL = {**RULES, "busy": READERS["busy"]}
TOGETHER = TYPES + "\n".join(f"pattern {name} {body}" for name, body in ALL.items())


def refusable_rule(name: str, version: int = 1, *, alone: bool = True) -> UpsertRecord:
    """Return a rule whose text has only its own pattern, so that other derived events are unknown, or all patterns."""
    source = TYPES + f"pattern {name} {ALL[name]}" if alone else TOGETHER
    return written(name, source, name).model_copy(update={"version": version})


def job_with_levels(
    initial: list[UpsertRecord], levels_count: int, keys: tuple[KeyDomain, ...], groups: int = 4
) -> Job:
    begun = deploy(initial)
    levels_count = max(levels_count, levels_needed(begun.rulebook.deployed()))
    domains = tuple(sorted({*begun.key_domains, *keys}))
    return Job(begun.schema, domains, groups, 1, levels_count=levels_count)


def as_the_job(job: Job, initial: list[UpsertRecord], later: Later) -> Deployment:
    """Return the rules of a replay, which does not know when records came or which events were matched by then."""
    return deploy_to_job(deploy(initial), (record for _, record in later), job.domains, job.levels_count)


def drawn_refusals(random: Random, changes_count: int) -> tuple[list[UpsertRecord], Later, list[bytes]]:
    """Return first rules, later ones with the number of the line after them, and events."""
    lines = lines_of(random, 130, START_MS, "e")
    others = random.sample(sorted(ALL.keys() - {"absent"}), random.randint(1, 4))
    first = [refusable_rule(name, alone=random.random() < 0.5) for name in ("absent", *others)]
    changes, later = Changes({record.id: record for record in first}), list[tuple[int, ControlRecord]]()

    def make(name: str, version: int) -> UpsertRecord:
        return refusable_rule(name, version, alone=random.random() < 0.6)

    for start in sorted(random.sample(gaps_of(lines), changes_count)):
        name = random.choice(sorted(RULES))
        # Most records come right before they start, others long before, even before the first event.
        line = start if random.random() < 0.7 else random.randint(later[-1][0] if later else 0, start)
        kinds = ("upsert", "upsert", "retire", "pause", "resume", "rollback")
        moments_ms = (time_ms(lines[start - 1]) + 1, time_ms(lines[start]))
        record = changes.next(random, name, kinds, moments_ms, make)
        later.append((max(line, later[-1][0] if later else 0), record))
    return first, later, lines


def refusal_case(seed: int) -> tuple[Job, list[UpsertRecord], Later, list[bytes], Random]:
    random = Random(f"refused {seed}")
    initial, later, lines = drawn_refusals(random, random.randint(6, 14))
    keys: tuple[KeyDomain, ...] = (("card",), ("shop",)) if random.random() < 0.8 else ()
    return job_with_levels(initial, random.randint(1, 4), keys), initial, later, lines, random


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_refuses_and_finds_what_the_job_did(seed: int, tmp_path: Path) -> None:
    job, initial, later, lines, random = refusal_case(seed)
    alerts, letters = lived(job, initial, later, lines, random, tmp_path)
    deployed = as_the_job(job, initial, later)
    assert letters == refusal_dead_letters(deployed.refused)
    assert alerts == replayed_book(Job(job.schema, deployed.key_domains), deployed.rulebook, lines, tmp_path)
    assert len(alerts) > 10


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_the_same(spark: SparkSession, tmp_path: Path) -> None:
    random = Random("refused on Spark 8")
    initial, later, lines = drawn_refusals(random, 4)
    job = job_with_levels(initial, 2, (("card",), ("shop",)), 2)
    live = lived_on_spark(LiveRun(spark, tmp_path / "live", job, as_json(initial), 1), later, lines)
    deployed = as_the_job(job, initial, later)
    assert deployed.refused
    assert live.letters == [orjson.loads(letter) for letter in refusal_dead_letters(deployed.refused)]
    replay_job = Job(job.schema, deployed.key_domains)
    assert sorted(live.alerts()) == replayed_book(replay_job, deployed.rulebook, lines, tmp_path)
    events, to_the_end = read_events(spark, tmp_path / "history.jsonl"), replace(replay_job, to_the_end=True)
    assert sorted(json_lines(replay(to_the_end, deployed.rulebook, events, 2).alerts)) == sorted(live.alerts())
