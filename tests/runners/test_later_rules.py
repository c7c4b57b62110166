"""A rule that comes to a running job: the alerts of it that do not say since when its past is known are the replay's,
less those of the replay whose windows reach back further than that."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.keyed_state import KeyedState, fit
from cep.engine.reach import known_from
from cep.lang.load import load_text
from cep.lang.walk import histories
from cep.model.rule import UpsertRecord, utc_text
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.runners.job import Programs, StepOutput, match_step
from tests.engine.bridge import through_bytes

DOMAIN = ("card_id",)
EVENTS = """
event payment { tx_id id  event_time time  card_id string  shop_id string?  amount decimal(2)  retain_it }
"""
CONDITIONS = [
    "count(payment over 40 s) >= 3",
    "sum(payment.amount over previous 25 s) > 3.00",
    "max(payment.amount over 30 s where amount < 5.00) < 4.00",
    "count(payment over 60 s by shop_id) >= 2",
    "distinct(payment.shop_id over 50 s) == 1",
    "stddev(payment.amount over 45 s) < 1.5",
    "median(payment.amount over 35 s) > 2.00",
    "not exists(payment over previous 20 s)",
    "exists(payment where amount > 6.00)",
    "last(payment).amount > 4.00",
    "first_seen(shop_id) < 30 s",
    "approx_distinct(payment.shop_id over 64 s) >= 2",
    "approx_percentile(payment.amount over 30 s, 80) > 5.0",
    'count(payment over hour in "Europe/Paris") < 9',
]
START_MS = 1_700_000_000_000


def record(number: int, condition: str, retain: str, effective: str | None = None) -> UpsertRecord:
    source = f"{EVENTS.replace('retain_it', retain)}\npattern p by card_id {{ seq a where a: payment {condition} }}"
    fields = {"id": f"r{number}", "version": 1, "pattern": "p", "status": "live", "severity": "low", "owner": "o"}
    return UpsertRecord.model_validate({**fields, "message": "m", "source": source, "effective_at": effective})


def payments(random: Random, count: int) -> EventBatch:
    times = np.cumsum([random.choice((0, 500, 3_000, 9_000, 40_000)) for _ in range(count)]) + START_MS
    columns = {
        "card_id": pa.array([random.choice("xyz") for _ in range(count)], TEXT),
        "shop_id": pa.array([random.choice(("s1", "s2", None)) for _ in range(count)], TEXT),
        "amount": pa.array([random.randint(0, 800) for _ in range(count)], pa.int64()),
    }
    ids = pa.array([f"{number:05}" for number in range(count)], TEXT)
    return EventBatch(columns["card_id"], ids, np.zeros(count, np.int16), times.astype(np.int64), columns)


def lived(book: Rulebook, batch: EventBatch, cuts: list[int], later: dict[int, list[UpsertRecord]]) -> pa.Table:
    """What micro-batches give that end at the cuts, with records that come after them; between two all is bytes."""
    programs, keyed_state, output = Programs(), None, StepOutput()
    for first, end in zip([0, *cuts], [*cuts, len(batch)], strict=True):
        book = rulebook_from_bytes(rulebook_bytes(book), book.schema, (DOMAIN,))
        for change in later.get(first, []):
            assert book.apply(change, int(batch.time_ms[first - 1])).kind == "applied"
        program = programs.of(book, book.schema)[DOMAIN]
        fitted: KeyedState | None = None if keyed_state is None else fit(keyed_state, program)[0]
        part = batch.take(np.arange(first, end))
        watermark_ms = int(batch.time_ms[end - 1])
        keyed_state = through_bytes(program, match_step(program, fitted, part, watermark_ms, output), watermark_ms)
    return output.alert_table()


@pytest.mark.parametrize("seed", range(8))
def test_live_and_replay_differ_only_where_an_alert_says_so(seed: int) -> None:
    random = Random(seed)
    retain = random.choice(("", "retain 45 s"))
    schema = load_text(EVENTS.replace("retain_it", retain)).schema
    batch = payments(random, 300)
    cuts = sorted(random.sample(range(20, 280), 6))
    there, *coming = random.sample(range(len(CONDITIONS)), 8)
    initial = record(there, CONDITIONS[there], retain)
    later: dict[int, list[UpsertRecord]] = {}
    for number in coming:
        cut = random.choice(cuts[:3])
        starts = utc_text(int(batch.time_ms[cut - 1]) + random.choice((1, 5_000)))
        later.setdefault(cut, []).append(record(number, CONDITIONS[number], retain, starts))
    book, every = Rulebook(schema, (DOMAIN,)), Rulebook(schema, (DOMAIN,))
    for target in (book, every):
        assert target.apply(initial, None).kind == "applied"
    for changes in later.values():
        for change in changes:
            outcome = every.apply(change, None)
            assert outcome.kind == "applied", outcome.full_reason
    found = lived(book, batch, cuts, later).to_pylist()
    output = StepOutput()
    match_step(Programs().of(every, schema)[DOMAIN], None, batch, TIME_MS_MAX, output)
    replayed = output.alert_table().to_pylist()
    assert all(alert["history_from"] is None for alert in replayed), "a replay has seen all"
    # The rules as the live job has them, whose epochs are in the order of their coming.
    told = Rulebook(schema, (DOMAIN,))
    told.apply(initial, None)
    for cut in sorted(later):
        for change in later[cut]:
            told.apply(change, int(batch.time_ms[cut - 1]))
    kept = {
        rule.rule_id: [(h.window, ms) for h, ms in zip(histories(rule.pattern), rule.known_ms[1:], strict=False)]
        for rule in told.deployed()
    }

    def lacks(alert: dict[str, object]) -> bool:
        start = np.array([int(alert["match_start"].timestamp() * 1_000)])  # type: ignore[attr-defined]
        return bool(known_from([], start, START_MS, kept[str(alert["rule_id"])]).is_valid()[0].as_py())

    def same(alerts: list[dict[str, object]]) -> list[str]:
        return sorted(repr({k: v for k, v in alert.items() if k != "epoch"}) for alert in alerts)

    assert same([a for a in found if a["history_from"] is None]) == same([a for a in replayed if not lacks(a)])
    assert all(lacks(alert) == (alert["history_from"] is not None) for alert in found)
    assert {a["rule_id"] for a in found} - {initial.id}, "rules that came later have alerts"
    assert kept[initial.id] == []
