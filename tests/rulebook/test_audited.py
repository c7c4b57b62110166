"""A job without signers whose rules can change writes the same chain, and states that its names are not verified."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import orjson
import pytest

from cep.base.audit import Head, Line, is_audit, texts_of, verify, without_texts
from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
)
from cep.rulebook import trust
from cep.rulebook.audit import note_erasure
from cep.rulebook.difference import difference
from cep.rulebook.erasure import forget_keys
from cep.rulebook.ledger import hash_of
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes, save
from cep.rulebook.statement import Signable, with_nonce
from cep.step.job import Job
from cep.step.rule_status import rule_status
from cep.step.rules import JobRules, apply_records, change_rules, has_unsaid, rulebook_of
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

SIGNED_PARTS = {"signers_version", "unverified", "audit"}
UNTIL = "2030-01-01T00:00:00.000Z"
DOMAINS = (("card_id",),)
AUDITED = Job(SCHEMA, DOMAINS, is_audited=True)
FIRST = upsert(1, by="Ada", reason="a new kind of fraud")
SNOOZE = SnoozeRecord(id="r", version=1, until=UNTIL, key="card-7", by="Ada", reason="card-7 is on a journey")
PAUSE = PauseRecord(id="r", version=1, by="Bob")
LIST = ListRecord(id="blocked", of="string", version=1, change="replace", entries=["a"], by="Bob")
RECORDS: list[Signable] = [
    FIRST, SNOOZE, PAUSE, ResumeRecord(id="r", version=2), LIST, upsert(2, params={"large": 7}), upsert(1),
    RollbackRecord(id="r", version=3, to_version=1, rule=FIRST), retire(4), upsert(1, "s", params={"no_such": 1}),
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
        book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, DOMAINS)
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
    book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, DOMAINS)
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
    book = rulebook_from_bytes(data, SCHEMA, DOMAINS)
    AUDITED.govern(book)
    lines = audit_of(book, *DATA[3:])
    assert len(lines) == len(DATA) - 3
    assert problems(lines, book.trail.head) == ()


def test_the_first_rules_have_lines_too() -> None:
    rules = JobRules(AUDITED, (FIRST.to_json(),))
    before = rulebook_of(rules, "")
    assert has_unsaid(rules, before)
    change = change_rules(rules, before, (DATA[1],), None)
    first, snooze = (orjson.loads(line) for line in change.dead_letters)
    assert (first["what"], first["id"], first["signers_version"]) == ("first", "r", None)
    assert (snooze["what"], snooze["kind"]) == ("change", "snooze")
    assert not has_unsaid(rules, change.after)
    plain = JobRules(replace(AUDITED, is_audited=False), (FIRST.to_json(),))
    assert not has_unsaid(plain, rulebook_of(plain, ""))
    assert change_rules(plain, rulebook_of(plain, ""), (DATA[1],), None).dead_letters == ()


def test_with_signers_lines_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte as in an earlier build, in which only jobs with signers had audits, and the verb was `cep sign`."""

    def refused(cause: str, reason: str) -> Outcome:
        return Outcome("refused", reason.replace("cep rules sign", "cep sign"), cause=cause)

    monkeypatch.setattr(trust, "_refused", refused)
    signed, pause, snooze = (by_two(record).to_json() for record in (FIRST, PAUSE, SNOOZE))
    for is_audited in (False, True):
        book = audited_book(replace(AUDITED, is_audited=is_audited, trust=TRUST))
        lines = audit_of(book, FIRST.to_json(), signed, pause, snooze, SNOOZE.to_json(), b"{no record")
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
    for record in (FIRST, SNOOZE, PAUSE, LIST):
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
    _, line = audit_of(audited_book(), with_nonce(FIRST).to_json(), SNOOZE.to_json())
    assert not is_guessed(without_texts(line)[1], guesses)
