"""Levels of rules that feed each other, and a replay that refuses what the job refused."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from cep.base.text import utc_text
from cep.model.rule import ControlRecord, HeartbeatRecord, RetireRecord, UpsertRecord
from cep.rulebook.compatible import KeyDomains
from cep.rulebook.deploy import Deployment, deploy, deploy_to_job
from cep.rulebook.publish import rules_without_level
from cep.rulebook.rulebook import Rulebook, levels_needed
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.rules import rule_status
from tests.runners.test_later_rules import written

# Levels of rules that feed each other: a later rule gets a level, and existing rules keep theirs.

EVENTS = """
event payment { tx_id id  event_time time  card string }
event flag { flag_id id  event_time time  card string }
event echo { echo_id id  event_time time  card string }
event ring { ring_id id  event_time time  card string }
"""
PARTS = {
    "plain": "a -> b within 1 h where a: payment b: payment",
    "flags": "a where a: payment emit card = a.card produce flag",
    "echoes": "a -> b within 1 h where a: flag b: flag emit card = a.card produce echo",
    "rings": "a -> b within 1 h where a: echo b: flag emit card = a.card produce ring",
    "reads_flag": "a -> b within 1 h where a: payment b: flag",
    "counts_echo": "a where a: payment count(echo over 1 h) > 2",
    "reads_ring": "a -> b within 1 h where a: payment b: ring",
}
SOURCE = EVENTS + "".join(f"pattern {name} by card {{ seq {body} }}\n" for name, body in PARTS.items())
FEEDS = {"flags": "flag", "echoes": "echo", "rings": "ring"}
READS = {
    "echoes": {"flag"},
    "rings": {"echo", "flag"},
    "reads_flag": {"flag"},
    "counts_echo": {"echo"},
    "reads_ring": {"ring"},
}
SEEN_MS = 1_700_000_000_000


def book_of(levels_count: int, *names: str) -> Rulebook:
    deployment = deploy([written(name, SOURCE, name) for name in PARTS])
    assert deployment.set_aside == ()
    book = Rulebook(deployment.schema, deployment.key_domains)
    for name in names:
        assert book.apply(written(name, SOURCE, name), None).kind == "applied"
    book.assign_levels(levels_count)
    return book


def levels_of(book: Rulebook) -> dict[str, int | None]:
    return {rule.rule_id: rule.level for rule in book.deployed()}


def next_version(book: Rulebook, name: str, on_update: str = "drain") -> UpsertRecord:
    version = 1 + (book.ledger.versions(name)[0])
    return written(name, SOURCE, name).model_copy(update={"version": version, "on_update": on_update})


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_and_goes_finds_its_place_and_moves_nothing(seed: int) -> None:
    random = Random(seed)
    book = book_of(random.choice((4, 5, 9)), *random.sample(sorted(PARTS), random.randint(0, len(PARTS))))
    for at_ms in range(SEEN_MS, SEEN_MS + 30):
        before = {rule.identity: rule.level for rule in book.deployed()}
        name = random.choice(sorted(PARTS))
        record = next_version(book, name, random.choice(("drain", "restart", "carry")))
        if name in book.rules and random.random() < 0.3:
            outcome = book.apply(RetireRecord(id=name, version=record.version), at_ms)
        else:
            outcome = book.apply(record, at_ms)
        assert outcome.kind == "applied", outcome.reason
        book.forget(at_ms - random.choice((0, 3_600_000)))
        rules = book.deployed()
        assert all(before.get(rule.identity, rule.level) == rule.level for rule in rules)
        for maker in rules:
            for reader in rules:
                if FEEDS.get(maker.rule_id) in READS.get(reader.rule_id, ()):
                    assert (maker.level or 0) < (reader.level or 0)
        again = rulebook_from_bytes(rulebook_bytes(book), book.schema, book.key_domains)
        assert levels_of(again) == levels_of(book)


def test_the_same_rules_stand_alike_in_a_job_and_in_a_replay() -> None:
    book = book_of(4, *PARTS)
    assert levels_of(book) == {
        "plain": 0, "flags": 0, "echoes": 1, "rings": 2, "reads_flag": 3, "counts_echo": 3, "reads_ring": 3
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_publisher_foresees_what_finds_no_place(seed: int) -> None:
    """The publisher uses the status alone, which names the free levels."""
    random = Random(seed)
    book = book_of(random.choice((2, 3)), "plain")
    refused = 0
    for at_ms in range(SEEN_MS, SEEN_MS + 25):
        record = next_version(book, random.choice(sorted(PARTS)))
        alone = deploy([record]).rulebook
        status = json.loads(json.dumps(rule_status(book)))
        foreseen = rules_without_level(alone.deployed(), status, alone.schema)
        outcome = book.apply(record, at_ms)
        assert list(foreseen.values()) == ([outcome.reason] if outcome.kind == "refused" else [])
        refused += outcome.kind == "refused"
    assert refused


def test_what_finds_no_place_is_refused_and_changes_nothing() -> None:
    book = book_of(2, "flags", "reads_flag", "plain")
    outcome = book.apply(written("echoes", SOURCE, "echoes"), SEEN_MS)
    assert outcome.kind == "applied", "nobody reads what it produces"
    for name, seen_ms in (("counts_echo", SEEN_MS), ("rings", SEEN_MS)):
        outcome = book.apply(written(name, SOURCE, name), seen_ms)
        assert outcome.kind == "refused"
        assert "--levels 3" in outcome.reason
    assert book.epoch == 4
    assert (levels_of(book)["echoes"], levels_of(book)["reads_flag"]) == (1, 1)
    early = book_of(2, "flags", "echoes", "plain")
    assert early.apply(written("counts_echo", SOURCE, "counts_echo"), None).kind == "refused", "before any event too"


def test_a_reader_of_events_of_the_source_is_not_fed_by_what_comes_later() -> None:
    """When the job began, patterns did not produce its event type, so it stands at level 0."""
    reader = EVENTS + "pattern p by card { seq a -> b within 1 h where a: payment b: flag }"
    deployment = deploy(
        [written("reader", reader, "p"), written("plain", SOURCE.split("pattern")[0] + reader[len(EVENTS) :], "p")]
    )
    book = Rulebook(deployment.schema, deployment.key_domains)
    book.apply(written("reader", reader, "p"), None)
    book.assign_levels(3)
    outcome = book.apply(written("flags", SOURCE, "flags"), SEEN_MS)
    assert outcome.kind == "refused"
    assert "before `reader`" in outcome.reason
    assert levels_of(book) == {"reader": 0}


def test_a_rulebook_of_an_earlier_build_stays_where_its_state_is() -> None:
    deployment = deploy([written(name, SOURCE, name) for name in PARTS])
    saved = rulebook_from_bytes(rulebook_bytes(deployment.rulebook), deployment.schema, deployment.key_domains)
    assert set(levels_of(saved).values()) == {None}
    saved.keep_levels(4)
    assert levels_of(saved) == {
        "plain": 0, "flags": 0, "echoes": 1, "rings": 2, "reads_flag": 1, "counts_echo": 2, "reads_ring": 3
    }  # fmt: skip


# A replay accepts and refuses the same control records as the job did, for the same reasons.

BODIES = {
    "plain": "by card { seq a -> b within 1 h where a: payment b: payment }",
    "flags": "by card { seq a where a: payment emit card = a.card produce flag }",
    "echoes": "by card { seq a where a: flag emit card = a.card produce echo }",
    "rings": "by card { seq a where a: echo emit card = a.card produce ring }",
    "reads_flag": "by card { seq a -> b within 1 h where a: payment b: flag }",
    "reads_echo": "by card { seq a -> b within 1 h where a: payment b: echo }",
    "reads_ring": "by card { seq a -> b within 1 h where a: payment b: ring }",
    "back": "by card { seq a where a: ring emit card = a.card produce flag }",
}

TOGETHER = EVENTS + "\n".join(f"pattern {name} {body}" for name, body in BODIES.items() if name != "back")


def rule(name: str, after_ms: int | None = None, version: int = 1, *, together: bool = False) -> UpsertRecord:
    """Return a rule whose text has its own pattern alone, or the patterns of all."""
    source = TOGETHER if together else EVENTS + f"pattern {name} {BODIES[name]}"
    effective = None if after_ms is None else utc_text(SEEN_MS + after_ms)
    return written(name, source, name, effective).model_copy(update={"version": version})


def lived(first: Sequence[ControlRecord], later: Sequence[ControlRecord], levels_count: int) -> list[tuple[str, str]]:
    """Return the refusals of a job, with reasons.

    The job sees an event before each record and forgets expired versions at once.
    """
    begun = deploy(first)
    book = Rulebook(begun.schema, begun.key_domains)
    for record in first:
        book.apply(record, None)
    book.assign_levels(levels_count)
    refused = []
    for number, record in enumerate(later):
        outcome = book.apply(record, SEEN_MS + 10 * number)
        if outcome.kind == "refused" and not isinstance(record, HeartbeatRecord):
            refused.append((record.id, outcome.full_reason))
        book.forget(SEEN_MS + 10 * number + 9)
        book = rulebook_from_bytes(rulebook_bytes(book), book.schema, book.key_domains)
        book.keep_levels(levels_count)
    return refused


def as_the_job(first: Sequence[ControlRecord], later: Sequence[ControlRecord], levels_count: int) -> Deployment:
    begun = deploy(first)
    levels_count = max(levels_count, levels_needed(begun.rulebook.deployed()))
    deployment = deploy_to_job(begun, later, begun.key_domains, levels_count)
    reasons = [(r.record.id, r.outcome.full_reason) for r in deployment.refused]
    assert reasons == lived(first, later, levels_count)
    assert [aside.reason for aside in deployment.set_aside] == [r.outcome.reason for r in deployment.refused]
    assert not {id(r.record) for r in deployment.refused} & {id(record) for record in deployment.taken}
    return deployment


def in_force(deployment: Deployment) -> set[str]:
    return {rule.rule_id for rule in deployment.rulebook.deployed()}


def test_a_chain_that_is_deeper_than_the_job() -> None:
    first = [rule("flags", together=True), rule("reads_flag", together=True)]
    later = [rule("echoes", 1), rule("reads_echo", 11), rule("plain", 21)]
    deployment = as_the_job(first, later, 2)
    assert in_force(deployment) == {"flags", "reads_flag", "echoes", "plain"}
    assert "`--levels 3`" in deployment.refused[0].outcome.reason
    assert in_force(as_the_job(first, later, 3)) == {"flags", "reads_flag", "echoes", "reads_echo", "plain"}


def test_what_nobody_was_to_produce_when_the_job_began() -> None:
    first, later = [rule("reads_flag"), rule("plain")], [rule("flags", 1), rule("reads_flag", 11, 2)]
    deployment = as_the_job(first, later, 4)
    assert in_force(deployment) == {"reads_flag", "plain"}
    assert "must be matched before `reads_flag`" in deployment.refused[0].outcome.reason
    assert in_force(as_the_job([*first, rule("flags")], later, 1)) == {"reads_flag", "plain", "flags"}


def test_a_chain_that_is_extended_in_the_middle() -> None:
    """`rings` stands as late as its reader allows; there may be no level between it and `flags`."""
    first = [rule(name, together=True) for name in ("flags", "rings", "reads_ring")]
    later = [rule("echoes", 1), rule("reads_flag", 11)]
    deployment = as_the_job(first, later, 2)
    assert in_force(deployment) == {"flags", "rings", "reads_ring", "reads_flag"}
    assert "must be matched before `rings`" in deployment.refused[0].outcome.reason
    assert in_force(as_the_job(first, later, 4)) == {"flags", "rings", "reads_ring", "echoes", "reads_flag"}


def test_where_a_rule_stood_counts_when_it_has_gone() -> None:
    """Otherwise the result would depend on when the job forgets a rule, which a replay does not know.

    A replay could not match a circle over time in the right order.
    """
    first = [rule("reads_flag"), rule("plain")]
    retired = RetireRecord(id="reads_flag", version=2, effective_at=utc_text(SEEN_MS + 1))
    later: list[ControlRecord] = [retired, rule("flags", 4_000_000)]
    assert in_force(as_the_job(first, later, 4)) == {"reads_flag", "plain"}
    chain = [rule("flags", together=True), rule("echoes", together=True), rule("rings", together=True)]
    gone = [RetireRecord(id=name, version=2, effective_at=utc_text(SEEN_MS + 1)) for name in ("flags", "echoes")]
    deployment = as_the_job(chain, [*gone, rule("back", 4_000_000)], 5)
    assert [r.record.id for r in deployment.refused] == ["back"]


def test_records_without_a_start_find_their_levels_together_with_the_first() -> None:
    """They hold without a start, so they count from before the first event, when runs did not exist yet."""
    begun = deploy([rule("reads_flag"), rule("plain")])
    deployment = deploy_to_job(begun, [rule("flags")], begun.key_domains, 2)
    assert in_force(deployment) == {"reads_flag", "plain", "flags"}
    levels = {r.rule_id: r.level for r in deployment.rulebook.deployed()}
    assert levels == {"flags": 0, "plain": 0, "reads_flag": 1}


def test_the_number_of_levels_is_that_of_what_is_in_force() -> None:
    begun = deploy([rule("flags"), rule("plain")])
    deployment = deploy_to_job(begun, [rule("reads_flag", 1)], begun.key_domains, 9)
    assert {r.rule_id: r.level for r in deployment.rulebook.deployed()} == {"flags": 0, "plain": 0, "reads_flag": 1}


def test_what_the_job_does_not_know() -> None:
    login = "event login { login_id id  event_time time  card string }\npattern p by card { seq a where a: login }"
    other = written("other", login, "p")
    by_id = written("by_id", EVENTS + "pattern p by tx_id { seq a where a: payment }", "p")
    for record, reason in ((other, "the job has no events `login`"), (by_id, "does not route events by (tx_id)")):
        (refused,) = deploy_to_job(deploy([rule("plain")]), [record], (), 1).refused
        assert reason in refused.outcome.reason
        assert refused.epoch == 1
    routed: list[KeyDomains | None] = [(("tx_id",),), None]
    for keys in routed:
        deployment = deploy_to_job(deploy([rule("plain")]), [by_id], keys, 1)
        assert in_force(deployment) == {"plain", "by_id"}


@pytest.mark.parametrize("levels_count", [1, 2])
def test_heartbeats_and_what_is_older_are_not_refused(levels_count: int) -> None:
    later: list[ControlRecord] = [HeartbeatRecord(event_time=utc_text(SEEN_MS)), rule("plain", 1)]
    deployment = as_the_job([rule("plain")], later, levels_count)
    assert deployment.refused == ()
    assert len(deployment.taken) == 3
