"""The rulebook of key groups: shared, told apart by all that it remembers, and rid of what is over."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.model.rule import HeartbeatRecord, RetireRecord, utc_text
from cep.runners.group_rules import changed, forgotten, initial_rulebook, known, restored
from cep.runners.job import Job
from tests.runners.spark.live_cases import make_job, rules

GIVEN = rules("card_testing", "small_then_large")
INITIAL = tuple(record.to_json() for record in GIVEN.values())
SEEN_MS = 1_772_323_200_000


@pytest.fixture
def job() -> Job:
    return make_job(GIVEN.values())


def test_key_groups_share_one_rulebook(job: Job) -> None:
    first = initial_rulebook(job, INITIAL)
    assert initial_rulebook(job, INITIAL) is first
    assert known(first.digest) is first
    assert restored(job, first.rulebook.to_bytes()) is first
    assert first.forget_ms == TIME_MS_MAX


def test_rulebooks_that_match_alike_but_remember_differently_are_two(job: Job) -> None:
    before = initial_rulebook(job, INITIAL)
    unknown = RetireRecord(id="never_seen", version=3).to_json()
    after = changed(job, before, (unknown,), SEEN_MS).after
    assert after.rulebook.fingerprint == before.rulebook.fingerprint
    assert after.digest != before.digest


def test_another_job_does_not_get_the_rulebook_of_this_one(job: Job) -> None:
    other = replace(job, domains=(*job.domains, ("account_id",)))
    assert initial_rulebook(other, INITIAL).digest != initial_rulebook(job, INITIAL).digest


def test_a_version_that_is_over_is_forgotten_at_its_time(job: Job) -> None:
    before = initial_rulebook(job, INITIAL)
    retire = RetireRecord(id="card_testing", version=2, effective_at=utc_text(SEEN_MS + 60_000))
    after = changed(job, before, (retire.to_json(),), SEEN_MS).after
    assert after.forget_ms == SEEN_MS + 60_000
    assert forgotten(job, after, after.forget_ms - 1).digest == after.digest
    left = forgotten(job, after, after.forget_ms)
    assert [rule.rule_id for rule in left.rulebook.deployed()] == ["small_then_large"]


def test_what_is_refused_is_told_and_heartbeats_are_read(job: Job) -> None:
    beat = HeartbeatRecord(event_time=utc_text(SEEN_MS)).to_json()
    other_key = GIVEN["card_testing"].model_copy(
        update={"version": 2, "source": GIVEN["card_testing"].source.replace("by card_id", "by merchant_id")}
    )
    late = RetireRecord(id="small_then_large", version=2, effective_at=utc_text(SEEN_MS - 999))
    change = changed(job, initial_rulebook(job, INITIAL), (b"{", other_key.to_json(), beat, late.to_json()), SEEN_MS)
    assert change.heartbeat_ms == SEEN_MS
    assert change.counters == {
        "control_unreadable": 1, "control_refused": 1, "control_heartbeat": 1, "control_applied": 1,
        "rule_late_ms": 1_000,
    }  # fmt: skip
    unreadable, refused = (orjson.loads(letter) for letter in change.dead_letters)
    assert (unreadable["code"], refused["code"]) == ("control_unreadable", "control_refused")
    assert "does not route events by (merchant_id)" in refused["reason"]
    assert changed(job, change.after, (b"{",), SEEN_MS).heartbeat_ms == TIME_MS_MIN
