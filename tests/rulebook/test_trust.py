"""A job with signers accepts only records that two people have signed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import orjson
import pytest

from cep.base.audit import Line, is_audit, texts_of, verify
from cep.model.rule import (
    ControlRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
    topic_key,
)
from cep.model.signed import Signature
from cep.rulebook import ledger
from cep.rulebook.deploy import deploy, deploy_to_job
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes, save
from cep.rulebook.statement import Signable, approve, body_hash, digest_of, sign, unsigned
from cep.rulebook.trust import Signer, Trust
from cep.step.rules import apply_records
from tests.rulebook.people import ADA, ADA_AGAIN, BOB, EVE, RULE_SET, SIGNERS, TRUST, by_two, upsert_by_two
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

SIGNED_PARTS = {"signers_version", "unverified", "audit"}
UNTIL = "2030-01-01T00:00:00Z"


def book_of(trust: Trust = TRUST) -> Rulebook:
    book = new_book()
    book.trust = trust
    return book


def judged(record: ControlRecord, book: Rulebook | None = None) -> str:
    outcome = (book or book_of()).apply(record, 1_000)
    return outcome.cause or outcome.kind


FIRST = upsert_by_two(upsert(1))
SECOND = upsert_by_two(upsert(2, params={"large": 7}), FIRST)


def test_what_two_people_have_signed_is_applied() -> None:
    book = book_of()
    assert judged(FIRST, book) == "applied"
    assert judged(SECOND, book) == "applied"
    assert judged(by_two(retire(3), SECOND), book) == "applied"


def test_without_signers_nothing_changes() -> None:
    assert judged(upsert(1), new_book()) == "applied"
    book = new_book()
    book.apply(upsert(1), None)
    assert not SIGNED_PARTS.intersection(orjson.loads(save(book).index))


def test_what_lacks_a_signature_is_refused() -> None:
    assert judged(upsert(1)) == "unsigned"
    assert judged(sign(upsert(1), ADA, RULE_SET)) == "unsigned"
    assert judged(approve(sign(upsert(1), ADA, RULE_SET), ADA)) == "self_approved"
    assert judged(approve(sign(upsert(1), ADA, RULE_SET), ADA_AGAIN)) == "self_approved", "another key of hers"
    assert judged(approve(sign(upsert(1), ADA, RULE_SET), EVE)) == "unknown_signer"
    assert judged(approve(sign(upsert(1), EVE, RULE_SET), BOB)) == "unknown_signer"
    assert judged(approve(sign(upsert(1), ADA, "others"), BOB)) == "other_rules"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2}, {"id": "s"}, {"params": {"large": 9}}, {"severity": "high"}, {"owner": "eve"},
        {"effective_at": "2031-01-01T00:00:00.000Z"}, {"source": FIRST.source + " "}, {"status": "shadow"},
        {"on_update": "restart"},
    ],
)  # fmt: skip
def test_a_signature_counts_for_one_record(changes: dict[str, object]) -> None:
    assert judged(FIRST.model_copy(update=changes)) == "forged"


def test_a_signature_counts_for_one_role_and_one_past() -> None:
    signed = FIRST.signed
    assert signed is not None
    assert signed.approver is not None
    swapped = signed.model_copy(update={"author": signed.approver, "approver": signed.author})
    assert judged(FIRST.model_copy(update={"signed": swapped})) == "forged"
    other_past = signed.model_copy(update={"previous_version": 1, "previous": digest_of(SECOND)})
    assert judged(FIRST.model_copy(update={"signed": other_past})) == "forged"
    # Bob alone cannot sign in Ada's name and then approve.
    drafted = sign(upsert(1), ADA, RULE_SET)
    assert drafted.signed is not None
    by_bob = Signature(key=ADA.public, signature=BOB.sign(b"a change of Ada's"))
    invented = drafted.model_copy(update={"signed": drafted.signed.model_copy(update={"author": by_bob})})
    assert judged(approve(invented, BOB)) == "forged"
    # Bob has approved Ada's text, not a text that another colleague attributes to her.
    by_eve = Signature(key=EVE.public, signature=EVE.sign(b""))
    trust = replace(TRUST, signers=(*SIGNERS, Signer("Eve", EVE.public, ("author",), ("*",))))
    stolen = sign(upsert(1), EVE, RULE_SET).signed
    assert stolen is not None
    assert by_eve != stolen.author
    record = upsert(1).model_copy(update={"signed": stolen.model_copy(update={"approver": signed.approver})})
    assert judged(record, book_of(trust)) == "forged"


def test_an_older_change_is_refused_and_a_copy_changes_nothing() -> None:
    book = book_of()
    assert [judged(record, book) for record in (FIRST, SECOND, FIRST, SECOND)] == [
        "applied", "applied", "replayed", "ignored",
    ]  # fmt: skip
    another = upsert_by_two(upsert(2, params={"large": 8}), FIRST)
    assert judged(another, book) == "replayed", "a version that has been taken is not taken with another meaning"
    assert book.report().last_versions == {"r": 2}


def test_a_rollback_is_a_change_that_is_signed_anew() -> None:
    book = book_of()
    for record in (FIRST, SECOND):
        book.apply(record, 1_000)
    back = RollbackRecord(id="r", version=3, to_version=1, rule=unsigned(FIRST))
    assert judged(back, book) == "unsigned"
    assert judged(back.model_copy(update={"signed": SECOND.signed}), book) == "forged"
    with_old = RollbackRecord(id="r", version=3, to_version=1, rule=FIRST)
    assert judged(with_old, book) == "unsigned", "the signatures of what it goes back to do not count for it"
    assert judged(by_two(back, SECOND), book) == "applied"
    assert judged(SECOND, book) == "replayed"


ONE_FOR_ROLLBACKS = replace(TRUST, people=tuple((kind, 1 if kind == "rollback" else n) for kind, n in TRUST.people))
CHANGES: list[dict[str, object]] = [
    {"params": {"large": 9}}, {"source": FIRST.source.replace("amount > large", 'amount > large and card_id != "c9"')},
    {"severity": "high"}, {"priority": 1}, {"message": "m"}, {"exclusive": "g"}, {"suppress": "1 h"}, {"score": 1},
    {"status": "shadow"}, {"pattern": "other"},
]  # fmt: skip


def gone_back(rule: UpsertRecord, after: Signable, version: int = 3) -> Signable:
    """Return a rollback to `rule` that Ada signs alone."""
    record = RollbackRecord(id="r", version=version, to_version=rule.version, rule=rule)
    return sign(record, ADA, RULE_SET, (after.version, digest_of(after)))


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("with_signatures", [False, True])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_one_person_cannot_deploy_another_text_by_a_rollback(
    changes: dict[str, object], with_signatures: bool, is_forgotten: bool
) -> None:
    """A job that has applied the version refuses it, and so does one that began with a later version."""
    book = book_of(ONE_FOR_ROLLBACKS)
    for record in (SECOND,) if is_forgotten else (FIRST, SECOND):
        assert judged(record, book) == "applied"
    book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
    book.trust = ONE_FOR_ROLLBACKS
    other = (FIRST if with_signatures else unsigned(FIRST)).model_copy(update=changes)
    assert judged(gone_back(other, SECOND), book) == ("forged" if with_signatures else "unsigned")
    assert book.report().last_versions == {"r": 2}
    genuine = FIRST if is_forgotten else unsigned(FIRST)
    assert judged(gone_back(genuine, SECOND), book) == "applied"


@pytest.mark.parametrize(("held", "sent"), [("{2}", "{2,}"), ("{2,}", "{2}"), ("{2}", "{2,3}")])
def test_a_rollback_with_another_number_of_repetitions_is_refused(held: str, sent: str) -> None:
    book = book_of(ONE_FOR_ROLLBACKS)
    source = FIRST.source.replace("seq    small", f"seq    small{held}")
    first = upsert_by_two(upsert(1, source=source))
    second = upsert_by_two(upsert(2, params={"large": 8}), first)
    assert [judged(record, book) for record in (first, second)] == ["applied"] * 2
    other = unsigned(first).model_copy(update={"source": source.replace(held, sent)})
    assert judged(gone_back(other, second), book) == "unsigned"
    assert judged(gone_back(unsigned(first), second), book) == "applied"


def test_a_rollback_to_a_rollback_carries_what_the_job_has_taken() -> None:
    book = book_of(ONE_FOR_ROLLBACKS)
    back = gone_back(FIRST, SECOND)
    assert isinstance(back, RollbackRecord)
    fourth = upsert_by_two(upsert(4, params={"large": 8}), back)
    assert [judged(record, book) for record in (FIRST, SECOND, back, fourth)] == ["applied"] * 4
    again = gone_back(back.as_upsert(), fourth, 5)
    assert judged(again, book) == "applied"


def test_a_change_of_what_no_longer_holds_is_refused() -> None:
    book = book_of()
    for record in (FIRST, SECOND):
        book.apply(record, 1_000)
    assert judged(by_two(upsert(3), FIRST), book) == "superseded"
    assert judged(by_two(upsert(3), upsert(2, params={"large": 99})), book) == "superseded"
    assert judged(by_two(upsert(3)), book) == "superseded"
    assert judged(by_two(upsert(3), SECOND), book) == "applied"


def test_pauses_snoozes_and_lists_are_signed_too() -> None:
    book = book_of()
    book.apply(FIRST, 1_000)
    pause = PauseRecord(id="r", version=1)
    snooze = SnoozeRecord(id="r", version=1, until=UNTIL, key="c1", by="ada")
    change = ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a"])
    for record in (pause, snooze, change):
        assert judged(record, book) == "unsigned"
        assert judged(sign(record, ADA, RULE_SET), book) == "unsigned"
    signed_pause = by_two(pause)
    assert judged(signed_pause, book) == "applied"
    assert judged(sign(ResumeRecord(id="r", version=2), ADA, RULE_SET, (1, digest_of(pause))), book) == "applied"
    assert judged(signed_pause, book) == "replayed"
    assert judged(by_two(snooze), book) == "applied"
    assert judged(by_two(change), book) == "applied"
    more = ListRecord(id="blocked", of="string", version=2, change="add", entries=["b"])
    assert judged(by_two(more), book) == "applied"
    assert judged(by_two(change), book) == "replayed"
    forged = ListRecord(id="blocked", of="string", version=3, change="replace", stored="0" * 64)
    assert judged(forged, book) == "unsigned"


def test_the_audit_has_a_line_of_each_part_of_a_list_that_changes() -> None:
    """The line names the list and the signers; it contains a hash of the whole record, not the entries."""
    book = book_of()
    whole = by_two(ListRecord(id="blocked", of="string", version=1, change="replace", entries=["card-7"]))
    more = ListRecord(id="blocked", of="string", version=2, change="add", entries=["card-8"], by="ada", reason="theft")
    data = [record.to_json() for record in (whole, more, by_two(more))]
    lines = [line for line in apply_records(book, tuple(data), 1_000)[0] if is_audit(line)]
    values = [orjson.loads(line) for line in lines]
    names = ("what", "kind", "id", "version", "by", "outcome", "cause")
    assert [[value[name] for name in names] for value in values] == [
        ["change", "list", "blocked", 1, ["Ada", "Bob"], "applied", ""],
        ["change", "list", "blocked", 2, [], "refused", "unsigned"],
        ["change", "list", "blocked", 2, ["Ada", "Bob"], "applied", ""],
    ]
    texts = texts_of(lines[2])
    assert (texts["of"], texts["sent_by"], texts["why"]) == ("list:blocked/string", "ada", "theft")
    assert texts["record"] == hashlib.sha256(data[2]).hexdigest()
    assert texts["changes"] == digest_of(more)
    assert not any(entry in line for line in lines for entry in (b"card-7", b"card-8"))
    assert verify([Line("", line) for line in lines], book.trail.head).problems == ()


def test_rights_rules_and_withdrawn_keys() -> None:
    def with_ada(ada: Signer) -> Rulebook:
        return book_of(replace(TRUST, signers=(ada, SIGNERS[1])))

    assert judged(FIRST, with_ada(replace(SIGNERS[0], may=("approve",)))) == "not_allowed"
    assert judged(FIRST, with_ada(replace(SIGNERS[0], rules=("card_*",)))) == "not_allowed"
    assert judged(FIRST, with_ada(replace(SIGNERS[0], only=()))) == "not_allowed"
    book = with_ada(replace(SIGNERS[0], only=(body_hash(FIRST),)))
    assert judged(FIRST, book) == "applied", "what was signed before the key was withdrawn still counts"
    assert judged(SECOND, book) == "not_allowed"
    other = upsert_by_two(upsert(1, params={"large": 9}))
    assert judged(other, with_ada(replace(SIGNERS[0], only=(body_hash(FIRST),)))) == "not_allowed", "another version 1"


def test_an_older_signers_file_is_refused() -> None:
    book = book_of(replace(TRUST, version=2))
    book.apply(FIRST, 1_000)
    again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
    again.trust = TRUST
    assert judged(SECOND, again) == "old_signers"


def test_a_job_knows_so_many_signed_rules_pauses_and_snoozes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SIGNED_LINES_MAX", 3)
    book = book_of()
    shadow, pause = by_two(upsert(2, status="shadow")), by_two(PauseRecord(id="r", version=1))
    assert [judged(record, book) for record in (FIRST, shadow, pause)] == ["applied"] * 3
    book = rulebook_from_bytes(rulebook_bytes(book.copy()), SCHEMA, (("card_id",),))
    book.trust = TRUST
    outcome = book.apply(by_two(upsert(1, "s")), 1_000)
    assert (outcome.kind, outcome.cause) == ("refused", "")
    assert "3 rules, pauses and snoozes" in outcome.reason
    assert judged(by_two(upsert(3), FIRST), book) == "applied"


def test_a_saved_rulebook_remembers_what_it_has_taken() -> None:
    book = book_of()
    for record in (FIRST, SECOND, upsert(9)):
        book.apply(record, 1_000)
    again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
    again.trust = TRUST
    assert rulebook_bytes(again) == rulebook_bytes(book)
    assert judged(FIRST, again) == "replayed"
    assert judged(by_two(upsert(3), FIRST), again) == "superseded"


def test_unverified_records_hide_no_refusal() -> None:
    """An attacker with write access invents a high version: the status still has the reason of an honest refusal."""
    book = book_of()
    for number in range(300):
        assert judged(upsert(2**31 - 1, f"made_up_{number}"), book) == "unsigned"
    assert judged(upsert(2**31 - 1), book) == "unsigned"
    honest = by_two(upsert(1, params={"no_such": 1}))
    assert judged(honest, book) == "refused"
    refused = {(r.rule_id, r.version) for r in book.report().refused}
    assert ("r", 1) in refused
    assert len(refused) < 200
    assert judged(by_two(upsert(2)), book) == "applied"


def test_a_replay_gives_the_same_verdicts() -> None:
    records: list[Signable] = [FIRST, upsert(2), SECOND, FIRST, by_two(upsert(3), FIRST), by_two(upsert(3), SECOND)]
    live = book_of()
    verdicts = [live.apply(record, None).cause for record in records]
    parsed = [record for record, _ in (parse_control(record.to_json()) for record in records) if record is not None]
    begun = deploy(parsed[:1], trust=TRUST)
    assert not begun.set_aside
    later = deploy_to_job(begun, parsed[1:], None, 1)
    assert [refused.outcome.cause for refused in later.refused] == [cause for cause in verdicts if cause]
    assert later.rulebook.content_hash == live.content_hash
    # An unsigned record of the folder does not count, not even for the event types.
    assert deploy([upsert(1)], trust=TRUST).schema.event_types == ()


def test_compaction_takes_no_signed_record_away() -> None:
    signed: list[ControlRecord] = [FIRST, SECOND]
    assert len({topic_key(record) for record in (*signed, upsert(3))}) == 3
    assert topic_key(upsert(1)) == topic_key(upsert(2)) == "r"


def test_a_record_goes_through_json() -> None:
    record, problems = parse_control(FIRST.to_json())
    assert (record, problems) == (FIRST, [])
    assert isinstance(record, UpsertRecord)
    assert b"signed" not in unsigned(FIRST).to_json()
