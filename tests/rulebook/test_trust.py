"""Signed and audited jobs: two people, a chain of changes, and changes that are noticed in any part."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.audit import Head, Line, is_audit, texts_of, verify, without_texts
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    Signature,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
    topic_key,
)
from cep.rulebook import ledger, trust
from cep.rulebook.audit import note_erasure
from cep.rulebook.deploy import deploy, deploy_to_job
from cep.rulebook.difference import difference
from cep.rulebook.erasure import forget_keys
from cep.rulebook.ledger import hash_of
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes, save
from cep.rulebook.trust import (
    Signable,
    Signer,
    approve,
    body_hash,
    digest_of,
    reason_against,
    sign,
    unsigned,
    with_nonce,
)
from cep.step.job import Job
from cep.step.rules import JobRules, apply_records, change_rules, lacks_initial_audit, rule_status, rulebook_of
from tests.rulebook.people import ADA, ADA_AGAIN, BOB, EVE, RULE_SET, SIGNERS, TRUST, by_two, upsert_by_two
from tests.rulebook.records import SCHEMA, new_book, restarted, retire, upsert

# A job with signers accepts only records that two people have signed.

SIGNED_PARTS = {"signers_version", "unverified", "audit"}
UNTIL = "2030-01-01T00:00:00.000Z"


def judged(record: ControlRecord, book: Rulebook | None = None) -> str:
    outcome = (book or new_book(trust=TRUST)).apply(record, 1_000)
    return outcome.cause or outcome.kind


FIRST = upsert_by_two(upsert(1))
SECOND = upsert_by_two(upsert(2, params={"large": 7}), FIRST)


def test_what_two_people_have_signed_is_applied() -> None:
    book = new_book(trust=TRUST)
    assert [judged(record, book) for record in (FIRST, SECOND, by_two(retire(3), SECOND))] == ["applied"] * 3


def test_without_signers_nothing_changes() -> None:
    assert judged(upsert(1), new_book()) == "applied"
    book = new_book(upsert(1))
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
    assert judged(record, new_book(trust=trust)) == "forged"


def test_an_older_change_is_refused_and_a_copy_changes_nothing() -> None:
    book = new_book(trust=TRUST)
    assert [judged(record, book) for record in (FIRST, SECOND, FIRST, SECOND)] == [
        "applied", "applied", "replayed", "ignored",
    ]  # fmt: skip
    another = upsert_by_two(upsert(2, params={"large": 8}), FIRST)
    assert judged(another, book) == "replayed", "a version that has been taken is not taken with another meaning"
    assert book.report().last_versions == {"r": 2}


def test_a_rollback_is_a_change_that_is_signed_anew() -> None:
    book = new_book(FIRST, SECOND, trust=TRUST)
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
    book = new_book(trust=ONE_FOR_ROLLBACKS)
    for record in (SECOND,) if is_forgotten else (FIRST, SECOND):
        assert judged(record, book) == "applied"
    book = restarted(book)
    other = (FIRST if with_signatures else unsigned(FIRST)).model_copy(update=changes)
    assert judged(gone_back(other, SECOND), book) == ("forged" if with_signatures else "unsigned")
    assert book.report().last_versions == {"r": 2}
    genuine = FIRST if is_forgotten else unsigned(FIRST)
    assert judged(gone_back(genuine, SECOND), book) == "applied"


@pytest.mark.parametrize(("held", "sent"), [("{2}", "{2,}"), ("{2,}", "{2}"), ("{2}", "{2,3}")])
def test_a_rollback_with_another_number_of_repetitions_is_refused(held: str, sent: str) -> None:
    book = new_book(trust=ONE_FOR_ROLLBACKS)
    source = FIRST.source.replace("seq    small", f"seq    small{held}")
    first = upsert_by_two(upsert(1, source=source))
    second = upsert_by_two(upsert(2, params={"large": 8}), first)
    assert [judged(record, book) for record in (first, second)] == ["applied"] * 2
    other = unsigned(first).model_copy(update={"source": source.replace(held, sent)})
    assert judged(gone_back(other, second), book) == "unsigned"
    assert judged(gone_back(unsigned(first), second), book) == "applied"


def test_a_rollback_to_a_rollback_carries_what_the_job_has_taken() -> None:
    book = new_book(trust=ONE_FOR_ROLLBACKS)
    back = gone_back(FIRST, SECOND)
    assert isinstance(back, RollbackRecord)
    fourth = upsert_by_two(upsert(4, params={"large": 8}), back)
    assert [judged(record, book) for record in (FIRST, SECOND, back, fourth)] == ["applied"] * 4
    again = gone_back(back.as_upsert(), fourth, 5)
    assert judged(again, book) == "applied"


def test_a_change_of_what_no_longer_holds_is_refused() -> None:
    book = new_book(FIRST, SECOND, trust=TRUST)
    assert judged(by_two(upsert(3), FIRST), book) == "superseded"
    assert judged(by_two(upsert(3), upsert(2, params={"large": 99})), book) == "superseded"
    assert judged(by_two(upsert(3)), book) == "superseded"
    assert judged(by_two(upsert(3), SECOND), book) == "applied"


def test_pauses_snoozes_and_lists_are_signed_too() -> None:
    book = new_book(FIRST, trust=TRUST)
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
    book = new_book(trust=TRUST)
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
        return new_book(trust=replace(TRUST, signers=(ada, SIGNERS[1])))

    assert judged(FIRST, with_ada(replace(SIGNERS[0], may=("approve",)))) == "not_allowed"
    assert judged(FIRST, with_ada(replace(SIGNERS[0], rules=("card_*",)))) == "not_allowed"
    assert judged(FIRST, with_ada(replace(SIGNERS[0], only=()))) == "not_allowed"
    book = with_ada(replace(SIGNERS[0], only=(body_hash(FIRST),)))
    assert judged(FIRST, book) == "applied", "what was signed before the key was withdrawn still counts"
    assert judged(SECOND, book) == "not_allowed"
    other = upsert_by_two(upsert(1, params={"large": 9}))
    assert judged(other, with_ada(replace(SIGNERS[0], only=(body_hash(FIRST),)))) == "not_allowed", "another version 1"


def test_an_older_signers_file_is_refused() -> None:
    book = new_book(FIRST, trust=replace(TRUST, version=2))
    again = restarted(book)
    again.trust = TRUST
    assert judged(SECOND, again) == "old_signers"


def test_a_job_knows_so_many_signed_rules_pauses_and_snoozes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SIGNED_LINES_MAX", 3)
    book = new_book(trust=TRUST)
    shadow, pause = by_two(upsert(2, status="shadow")), by_two(PauseRecord(id="r", version=1))
    assert [judged(record, book) for record in (FIRST, shadow, pause)] == ["applied"] * 3
    book = restarted(book.copy())
    outcome = book.apply(by_two(upsert(1, "s")), 1_000)
    assert (outcome.kind, outcome.cause) == ("refused", "")
    assert "3 rules, pauses and snoozes" in outcome.reason
    assert judged(by_two(upsert(3), FIRST), book) == "applied"


def test_a_saved_rulebook_remembers_what_it_has_taken() -> None:
    book = new_book(FIRST, SECOND, upsert(9), trust=TRUST)
    again = restarted(book)
    assert rulebook_bytes(again) == rulebook_bytes(book)
    assert judged(FIRST, again) == "replayed"
    assert judged(by_two(upsert(3), FIRST), again) == "superseded"


def test_unverified_records_hide_no_refusal() -> None:
    """An attacker with write access invents a high version: the status still has the reason of an honest refusal."""
    book = new_book(trust=TRUST)
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
    live = new_book(trust=TRUST)
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


# A change to a signed record is noticed, in any part of the record.

SIGNED: list[Signable] = [
    by_two(upsert(2, params={"large": 7})),
    by_two(retire(3)),
    by_two(RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1))),
    by_two(PauseRecord(id="r", version=1, reason="floods")),
    by_two(ResumeRecord(id="r", version=2)),
    by_two(SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", key="c1", by="ada")),
    by_two(ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a", "b"])),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIGNED), st.data())
def test_any_changed_byte_is_noticed(record: Signable, data: st.DataObject) -> None:
    raw = record.to_json()
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = (
        raw[:place] + data.draw(st.sampled_from([b"", b"0", b"1", b'"', b"a", b"\xff", b" ", b"}"])) + raw[place + 1 :]
    )
    _assert_noticed(record, changed)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, child in children for place in _places(child, (*path, name)))][0 if path else 1 :]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIGNED), st.data())
def test_any_changed_value_is_noticed(record: Signable, data: st.DataObject) -> None:
    document = json.loads(record.to_json())
    path = data.draw(st.sampled_from(_places(document)))
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    if data.draw(st.booleans()):
        del inner[path[-1]]
    else:
        inner[path[-1]] = data.draw(
            st.sampled_from([0, 1, 5, "", "x", "draft", "ed25519:" + "0" * 64, "0" * 128, [], {}, None, True])
        )
    _assert_noticed(record, json.dumps(document).encode())


def _assert_noticed(record: Signable, changed: bytes) -> None:
    parsed, problems = parse_control(changed)
    if parsed is None:
        assert problems
    elif isinstance(parsed, HeartbeatRecord) or parsed != record:
        assert isinstance(parsed, HeartbeatRecord) or reason_against(parsed, TRUST) is not None or (
            # Resumptions need one person: they stay valid without the second.
            parsed.kind == "resume" and parsed.model_copy(update={"signed": record.signed}) == record
        )  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(1, 4),
        st.sampled_from([{}, {"large": 7}]),
        st.integers(0, 3),
        st.sampled_from(["both", "both", "both", "one", "none", "self", "eve"]),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 8))
def test_only_what_two_have_signed_counts_and_never_goes_back(steps: list[Any], cut: int) -> None:
    """The oracle: the version of each rule only rises, by records that both have signed as a change of the last one."""
    book = new_book(trust=TRUST)
    applied: dict[str, tuple[int, str]] = {}
    for number, (rule_id, version, params, past, who) in enumerate(steps):
        record = upsert(version, rule_id, params=params)
        last, digest = applied.get(rule_id, (0, ""))
        before = (past, digest if past == last else "f" * 64 if past else "")
        signed: Signable = sign(record, EVE if who == "eve" else ADA, RULE_SET, before)
        signed = approve(signed, {"self": ADA}.get(who, BOB)) if who != "one" else signed
        signed = record if who == "none" else signed
        counts = who == "both" and version > last and (past >= last or rule_id not in applied)
        outcome = book.apply(signed, 1_000 + number)
        assert (outcome.kind == "applied") == counts, outcome
        if counts:
            applied[rule_id] = version, digest_of(record)
        assert {name: (v, book.rules[name].live[-1].entry is not None) for name, (v, _) in applied.items()} == {
            name: (v, True) for name, v in book.report().last_versions.items()
        }
        if number == cut:  # a restart
            book = restarted(book)


# A job without signers whose rules can change writes the same chain, and states that its names are not verified.


AUDITED = Job(SCHEMA, (("card_id",),), is_audited=True)
FIRST_OF_ADA = upsert(1, by="Ada", reason="a new kind of fraud")
SNOOZE = SnoozeRecord(id="r", version=1, until=UNTIL, key="card-7", by="Ada", reason="card-7 is on a journey")
PAUSE = PauseRecord(id="r", version=1, by="Bob")
LIST = ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a"], by="Bob")
RECORDS: list[Signable] = [
    FIRST_OF_ADA, SNOOZE, PAUSE, ResumeRecord(id="r", version=2), LIST, upsert(2, params={"large": 7}), upsert(1),
    RollbackRecord(id="r", version=3, to_version=1, rule=FIRST_OF_ADA), retire(4),
    upsert(1, "s", params={"no_such": 1}),
]  # fmt: skip
EARLIER = "047afee146de53d3493222478be021dddf46c6947c7929d0d3907aeab4815a09"
DATA = tuple(with_nonce(record).to_json() for record in RECORDS)


def audited_book(job: Job = AUDITED) -> Rulebook:
    book = new_book()
    job.govern(book)
    return book


def audit_of(book: Rulebook, *data: bytes) -> list[bytes]:
    return [line for line in apply_records(book, data, 1_000)[0] if is_audit(line)]


def problems(lines: list[bytes], head: Head | None = None) -> tuple[str, ...]:
    return verify([Line("", line) for line in lines], head).problems


def test_each_change_has_a_line_that_says_that_nobody_has_signed() -> None:
    book = audited_book()
    lines = audit_of(book, *DATA, b"{no record", by_two(PAUSE.model_copy(update={"version": 9})).to_json())
    values = [orjson.loads(line) for line in lines]
    assert [value["outcome"] for value in values] == [
        *["applied"] * 6, "ignored", "applied", "applied", "refused", "refused", "applied",
    ]  # fmt: skip
    assert [value["kind"] for value in values if "kind" in value] == [record.kind for record in (*RECORDS, PAUSE)]
    assert {value["signers_version"] for value in values} == {None}
    # Unchecked signatures do not name their signers.
    assert all(value.get("by", []) == [] for value in values)
    texts = texts_of(lines[1])
    assert (texts["of"], texts["sent_by"], texts["why"]) == ("r/snooze/card-7", "Ada", "card-7 is on a journey")
    assert texts["record"] == hashlib.sha256(DATA[1]).hexdigest()
    assert problems(lines, book.trail.head) == ()
    assert rule_status(book)["audit"] == book.trail.head.to_json()


def test_what_is_removed_changed_or_moved_is_noticed() -> None:
    book = audited_book()
    lines, head = audit_of(book, *DATA), book.trail.head
    others = audit_of(audited_book(), *DATA[::-1])  # each has a hash that fits, but follows another line
    for wrong in (
        [*lines[:2], others[2], *lines[3:]],
        lines[:-1], lines[1:], [*lines[:3], *lines[4:]], lines[::-1], [lines[1], lines[0], *lines[2:]],
        [line.replace(b'"version":2', b'"version":5') for line in lines],
        [line.replace(b"Ada", b"Eve") for line in lines],
    ):  # fmt: skip
        assert problems(wrong, head)
    signed = lines[0].replace(b'"signers_version":null', b'"signers_version":1')
    assert problems([signed, *lines[1:]], head), "somebody is said to vouch"


def test_the_same_records_write_the_same_chain_wherever_the_job_was_restarted() -> None:
    whole = audited_book()
    lines = audit_of(whole, *DATA)
    for cut in range(len(DATA)):
        book = audited_book()
        before = audit_of(book, *DATA[:cut])
        book = restarted(book)
        AUDITED.govern(book)
        assert [*before, *audit_of(book.copy(), *DATA[cut:])] == lines
        audit_of(book, *DATA[cut:])
        assert rulebook_bytes(book) == rulebook_bytes(whole)
    assert audit_of(audited_book(), *DATA[::-1]) != lines


def test_a_job_whose_rules_never_change_writes_nothing() -> None:
    plain = replace(AUDITED, is_audited=False)
    book = audited_book(plain)
    assert audit_of(book, *DATA) == []
    assert "audit" not in rule_status(book)
    assert not SIGNED_PARTS.intersection(orjson.loads(save(book).index))
    assert Job.from_json(plain.to_json()) == plain
    assert "is_audited" not in plain.to_json(), "the description of a plain job is what it was"
    assert Job.from_json(orjson.loads(orjson.dumps(AUDITED.to_json()))) == AUDITED


def test_a_chain_that_has_begun_goes_on_though_rules_no_longer_change() -> None:
    book = audited_book()
    lines = audit_of(book, *DATA[:2])
    book = restarted(book)
    replace(AUDITED, is_audited=False).govern(book)
    assert rule_status(book)["audit"] == book.trail.head.to_json()
    forget_keys(book, {"card-7"})
    number, bare = without_texts(lines[1])
    (erasure,) = note_erasure(book, {"card_id": 1}, {"snoozes": 1}, [number])
    assert orjson.loads(erasure)["signers_version"] is None
    assert problems([lines[0], bare, erasure], book.trail.head) == ()
    assert problems([lines[0], bare, lines[1]], book.trail.head)


def test_a_job_of_an_earlier_build_begins_its_chain_where_it_goes_on() -> None:
    earlier = audited_book(replace(AUDITED, is_audited=False))
    audit_of(earlier, *DATA[:3])
    data = rulebook_bytes(earlier)
    assert not SIGNED_PARTS.intersection(orjson.loads(save(earlier).index))
    book = rulebook_from_bytes(data, SCHEMA, (("card_id",),))
    AUDITED.govern(book)
    lines = audit_of(book, *DATA[3:])
    assert len(lines) == len(DATA) - 3
    assert problems(lines, book.trail.head) == ()


def test_the_first_rules_have_lines_too() -> None:
    rules = JobRules(AUDITED, (FIRST_OF_ADA.to_json(),))
    before = rulebook_of(rules, "")
    assert lacks_initial_audit(rules, before)
    change = change_rules(rules, before, (DATA[1],), None)
    first, snooze = (orjson.loads(line) for line in change.dead_letters)
    assert (first["what"], first["id"], first["signers_version"]) == ("first", "r", None)
    assert (snooze["what"], snooze["kind"]) == ("change", "snooze")
    assert not lacks_initial_audit(rules, change.after)
    plain = JobRules(replace(AUDITED, is_audited=False), (FIRST_OF_ADA.to_json(),))
    assert not lacks_initial_audit(plain, rulebook_of(plain, ""))
    assert change_rules(plain, rulebook_of(plain, ""), (DATA[1],), None).dead_letters == ()


def test_with_signers_lines_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte as in an earlier build, in which only jobs with signers had audits, and the verb was `cep sign`."""

    def refused(cause: str, reason: str) -> Outcome:
        return Outcome("refused", reason.replace("cep rules sign", "cep sign"), cause=cause)

    monkeypatch.setattr(trust, "_refused", refused)
    signed, pause, snooze = (by_two(record).to_json() for record in (FIRST_OF_ADA, PAUSE, SNOOZE))
    for is_audited in (False, True):
        book = audited_book(replace(AUDITED, is_audited=is_audited, trust=TRUST))
        lines = audit_of(book, FIRST_OF_ADA.to_json(), signed, pause, snooze, SNOOZE.to_json(), b"{no record")
        lines += note_erasure(book, {"card_id": 1}, {"snoozes": 1}, [4, 5])
        assert orjson.loads(lines[1])["by"] == ["Ada", "Bob"]
        assert book.trail.head.to_json() == {"count": 7, "hash": EARLIER}


# ------------------------------------------------------------------------------------------------------------ nonce


def test_a_nonce_changes_no_meaning() -> None:
    for record in RECORDS:
        one, two = with_nonce(record), with_nonce(record)
        assert one.nonce != two.nonce
        assert parse_control(one.to_json()) == (one, [])
        assert hash_of(one) == hash_of(two) == hash_of(record)
        assert difference(one, two) == difference(record, one) == []
        if isinstance(record, UpsertRecord) and isinstance(one, UpsertRecord):
            assert content_hash(one) == content_hash(record)
        if isinstance(one, RollbackRecord):
            assert one.as_upsert().nonce is None


def test_the_same_change_sent_twice_is_one() -> None:
    """Two verbs send the same change, or one repeats it: they do not conflict, and the rules do not change."""
    book, other = new_book(), new_book()
    for record in (FIRST_OF_ADA, SNOOZE, PAUSE, LIST):
        outcomes = [book.apply(with_nonce(record), 1_000) for _ in range(2)]
        assert [outcome.kind for outcome in outcomes] == ["applied", "ignored"]
        assert not outcomes[1].is_conflict
        other.apply(record, 1_000)
    assert book.content_hash == other.content_hash
    assert book.ledger.data == other.ledger.data


def test_a_nonce_is_128_bits_and_a_heartbeat_has_none() -> None:
    for nonce in ("", "0" * 31, "0" * 33, "G" * 32, "A" * 32, 7):
        data = orjson.dumps({**orjson.loads(PAUSE.to_json()), "nonce": nonce})
        assert parse_control(data)[0] is None
    assert "nonce" not in HeartbeatRecord.model_fields


def is_guessed(bare: bytes, guesses: list[bytes]) -> bool:
    """Return True if an attacker who knows the job can find the texts of the first line of a trail by guessing."""
    tried = (audit_of(audited_book(), guess) for guess in guesses)
    return orjson.loads(bare)["sealed"] in {orjson.loads(line)["sealed"] for (line,) in tried}


def test_erased_texts_cannot_be_guessed_if_the_record_has_a_nonce() -> None:
    """Without a nonce and a signature, they can be guessed: the pages say so."""
    guesses = [
        SNOOZE.model_copy(update={"key": f"card-{number}", "reason": f"card-{number} is on a journey"}).to_json()
        for number in range(20)
    ]
    for data, is_found in ((SNOOZE.to_json(), True), (with_nonce(SNOOZE).to_json(), False)):
        (line,) = audit_of(audited_book(), data)
        _, bare = without_texts(line)
        assert b"card-7" not in bare
        assert is_guessed(bare, guesses) == is_found
    # One nonce in an earlier record is enough.
    _, line = audit_of(audited_book(), with_nonce(FIRST_OF_ADA).to_json(), SNOOZE.to_json())
    assert not is_guessed(without_texts(line)[1], guesses)
