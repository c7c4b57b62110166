"""Levels of rules that feed each other: a later rule gets a level, and existing rules keep theirs."""

from __future__ import annotations

import json
from random import Random

import pytest

from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.publish import foreseen_levels
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.rule_status import rule_status
from tests.runners.test_later_rules import written

EVENTS = """
event payment { tx_id id  event_time time  card string }
event flag { flag_id id  event_time time  card string }
event echo { echo_id id  event_time time  card string }
event ring { ring_id id  event_time time  card string }
"""
BODIES = {
    "plain": "a -> b within 1 h where a: payment b: payment",
    "flags": "a where a: payment emit card = a.card produce flag",
    "echoes": "a -> b within 1 h where a: flag b: flag emit card = a.card produce echo",
    "rings": "a -> b within 1 h where a: echo b: flag emit card = a.card produce ring",
    "reads_flag": "a -> b within 1 h where a: payment b: flag",
    "counts_echo": "a where a: payment count(echo over 1 h) > 2",
    "reads_ring": "a -> b within 1 h where a: payment b: ring",
}
SOURCE = EVENTS + "".join(f"pattern {name} by card {{ seq {body} }}\n" for name, body in BODIES.items())
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
    deployment = deploy([written(name, SOURCE, name) for name in BODIES])
    assert deployment.set_aside == ()
    book = Rulebook(deployment.schema, deployment.key_domains)
    for name in names:
        assert book.apply(written(name, SOURCE, name), None).kind == "applied"
    book.place(levels_count)
    return book


def levels_of(book: Rulebook) -> dict[str, int | None]:
    return {rule.rule_id: rule.level for rule in book.deployed()}


def next_version(book: Rulebook, name: str, on_update: str = "drain") -> UpsertRecord:
    version = 1 + (book.ledger.versions(name)[0])
    return written(name, SOURCE, name).model_copy(update={"version": version, "on_update": on_update})


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_and_goes_finds_its_place_and_moves_nothing(seed: int) -> None:
    random = Random(seed)
    book = book_of(random.choice((4, 5, 9)), *random.sample(sorted(BODIES), random.randint(0, len(BODIES))))
    for at_ms in range(SEEN_MS, SEEN_MS + 30):
        before = {rule.identity: rule.level for rule in book.deployed()}
        name = random.choice(sorted(BODIES))
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
    book = book_of(4, *BODIES)
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
        record = next_version(book, random.choice(sorted(BODIES)))
        alone = deploy([record]).rulebook
        status = json.loads(json.dumps(rule_status(book)))
        foreseen = foreseen_levels(alone.deployed(), status, alone.schema)
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
    book.place(3)
    outcome = book.apply(written("flags", SOURCE, "flags"), SEEN_MS)
    assert outcome.kind == "refused"
    assert "before `reader`" in outcome.reason
    assert levels_of(book) == {"reader": 0}


def test_a_rulebook_of_an_earlier_build_stays_where_its_state_is() -> None:
    deployment = deploy([written(name, SOURCE, name) for name in BODIES])
    saved = rulebook_from_bytes(rulebook_bytes(deployment.rulebook), deployment.schema, deployment.key_domains)
    assert set(levels_of(saved).values()) == {None}
    saved.keep_levels(4)
    assert levels_of(saved) == {
        "plain": 0, "flags": 0, "echoes": 1, "rings": 2, "reads_flag": 1, "counts_echo": 2, "reads_ring": 3
    }  # fmt: skip
