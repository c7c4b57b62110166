"""The rulebook of key groups: shared, distinguished by all that it remembers, and rid of expired content."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.utc import utc_text
from cep.model.rule import HeartbeatRecord, RetireRecord
from cep.rulebook.saved import RulebookStore, rulebook_bytes
from cep.step import rules as group_rules
from cep.step.rules import JobRules, change_rules, forget_rules, rulebook_of, save_rulebook
from tests.runners.spark.live_cases import make_job, rules

GIVEN = rules("card_testing", "small_then_large")
INITIAL = tuple(record.to_json() for record in GIVEN.values())
SEEN_MS = 1_772_323_200_000


@pytest.fixture
def job_rules(tmp_path: Path) -> JobRules:
    return JobRules(make_job(GIVEN.values()), INITIAL, RulebookStore(tmp_path))


def test_key_groups_share_one_rulebook(job_rules: JobRules) -> None:
    first = rulebook_of(job_rules, "")
    assert rulebook_of(job_rules, "") is first
    assert rulebook_of(job_rules, first.digest) is first
    assert first.forget_ms == TIME_MS_MAX


def test_another_process_reads_the_rulebook_from_the_folder(
    job_rules: JobRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire = RetireRecord(id="card_testing", version=2).to_json()
    before = change_rules(job_rules, rulebook_of(job_rules, ""), (retire,), SEEN_MS).after
    save_rulebook(job_rules, before)
    for cache in ("_RULEBOOKS", "_CHANGES", "_INITIAL", "_SAVED"):
        monkeypatch.setattr(group_rules, cache, OrderedDict())
    again = rulebook_of(job_rules, before.digest)
    assert again.rulebook is not before.rulebook
    assert rulebook_bytes(again.rulebook) == rulebook_bytes(before.rulebook)


def test_rulebooks_that_match_alike_but_remember_differently_are_two(job_rules: JobRules) -> None:
    before = rulebook_of(job_rules, "")
    unknown = RetireRecord(id="never_seen", version=3).to_json()
    after = change_rules(job_rules, before, (unknown,), SEEN_MS).after
    assert after.rulebook.fingerprint == before.rulebook.fingerprint
    assert after.digest != before.digest


def test_another_job_does_not_get_the_rulebook_of_this_one(job_rules: JobRules) -> None:
    job = job_rules.job
    other = replace(job_rules, job=replace(job, domains=(*job.domains, ("account_id",))))
    assert rulebook_of(other, "") is not rulebook_of(job_rules, "")


def test_a_version_that_is_over_is_forgotten_at_its_time(job_rules: JobRules) -> None:
    before = rulebook_of(job_rules, "")
    retire = RetireRecord(id="card_testing", version=2, effective_at=utc_text(SEEN_MS + 60_000))
    after = change_rules(job_rules, before, (retire.to_json(),), SEEN_MS).after
    assert after.forget_ms == SEEN_MS + 60_000
    assert forget_rules(job_rules, after, after.forget_ms - 1).digest == after.digest
    rules_after = forget_rules(job_rules, after, after.forget_ms)
    assert [rule.rule_id for rule in rules_after.rulebook.deployed()] == ["small_then_large"]


def test_what_is_refused_is_told_and_heartbeats_are_read(job_rules: JobRules) -> None:
    beat = HeartbeatRecord(event_time=utc_text(SEEN_MS)).to_json()
    other_key = GIVEN["card_testing"].model_copy(
        update={"version": 2, "source": GIVEN["card_testing"].source.replace("by card_id", "by merchant_id")}
    )
    late = RetireRecord(id="small_then_large", version=2, effective_at=utc_text(SEEN_MS - 999))
    change = change_rules(
        job_rules, rulebook_of(job_rules, ""), (b"{", other_key.to_json(), beat, late.to_json()), SEEN_MS
    )
    assert change.heartbeat_ms == SEEN_MS
    assert change.counters == {
        "control_unreadable": 1, "control_refused": 1, "control_heartbeat": 1, "control_applied": 1,
        "rule_late_ms": 1_000,
    }  # fmt: skip
    unreadable, refused = (orjson.loads(letter) for letter in change.dead_letters)
    assert (unreadable["code"], refused["code"]) == ("control_unreadable", "control_refused")
    assert "does not route events by (merchant_id)" in refused["reason"]
    assert change_rules(job_rules, change.after, (b"{",), SEEN_MS).heartbeat_ms == TIME_MS_MIN
