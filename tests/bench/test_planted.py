"""Frauds planted into honest months: every kind exists among honest events, and a seed repeats its result."""

from __future__ import annotations

from collections import Counter

import pyarrow.compute as pc
import pytest

from tests.bench.planted import FIELDS, planted


@pytest.mark.parametrize("name", FIELDS)
def test_a_set_has_frauds_of_each_kind_among_honest_events(name: str) -> None:
    field = FIELDS[name]
    events, labels = planted(name, 1, banks=1)
    assert set(events["event_type"].to_pylist()) == {field.event_type}
    ids = events[field.id].to_pylist()
    assert len(set(ids)) == len(ids)
    assert set(labels["event_id"].to_pylist()) <= set(ids)
    times = events["event_time"]
    assert times.to_pylist() == sorted(times.to_pylist())
    is_honest = pc.invert(pc.starts_with(events[field.id], "planted"))
    assert pc.max(times) == pc.max(times.filter(is_honest)), "a fraud that goes on for long would stretch the history"
    of_kind = Counter(dict(zip(labels["episode"].to_pylist(), labels["kind"].to_pylist(), strict=True)).values())
    assert of_kind == dict.fromkeys(field.kinds, field.of_each)
    assert pc.mean(pc.starts_with(events[field.id], "planted")).as_py() < 0.7


def test_a_good_month_before_a_bust_out_is_no_fraud() -> None:
    events, labels = planted("lending", 1, banks=1)
    loans = events.filter(pc.is_in(events["loan_event_id"], labels["event_id"].combine_chunks()))
    assert "bust_out" in labels["kind"].to_pylist()
    assert events.filter(pc.starts_with(events["loan_event_id"], "planted")).num_rows > loans.num_rows


def test_the_same_from_a_seed_and_another_from_the_next() -> None:
    first, again, other = (planted("wallets", seed, banks=1)[0] for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
