"""The rulebook no longer names an erased key, and the key's old snooze does not count again."""

from __future__ import annotations

import orjson
import pytest

from cep.base.audit import is_audit, texts_of, without_texts
from cep.model.rule import PauseRecord, SnoozeRecord
from cep.rulebook.erasure import forget_keys
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.statement import with_nonce
from cep.step.rules import apply_records
from tests.rulebook.people import TRUST, by_two
from tests.rulebook.records import SCHEMA, new_book, upsert

UNTIL, LATER = "2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"


def snooze(version: int, key: str | None, until: str = UNTIL) -> SnoozeRecord:
    return SnoozeRecord(id="r", version=version, until=until, key=key, by="Ada", reason=f"{key} is on a journey")


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_rulebook_without_a_key(is_signed: bool) -> None:
    book = new_book()
    book.trust = TRUST if is_signed else None
    first, gone, other, every = upsert(1), snooze(1, "card-7"), snooze(1, "card-8"), snooze(1, None)
    pause = PauseRecord(id="r", version=1, by="Bob", reason="card-7 is his")
    for record in (first, gone, other, every, pause):
        assert book.apply(by_two(record) if is_signed else record, None).kind == "applied"
    stays = book.snoozes.report()
    assert forget_keys(book, {"card-7"}) == 1
    data = rulebook_bytes(book)
    assert b"card-7" not in data
    assert b"card-8 is on a journey" in data
    book = rulebook_from_bytes(data, SCHEMA, (("card_id",),))
    book.trust = TRUST if is_signed else None
    assert book.snoozes.report() == tuple(one for one in stays if one.key != "card-7")

    before = book.snoozes.report()
    again = book.apply(by_two(snooze(1, "card-7", LATER)) if is_signed else snooze(1, "card-7", LATER), None)
    assert again.kind == "refused", "an old version of what was erased"
    assert book.snoozes.report() == before
    assert book.apply(by_two(gone) if is_signed else gone, None).kind == "ignored", "the record that was erased"
    assert book.snoozes.report() == before
    second = snooze(2, "card-7")
    changes = book.ledger.head(second)
    assert changes.version == 1
    renewed = second.model_copy(update={"changes": changes})
    assert book.apply(by_two(renewed, gone) if is_signed else renewed, None).kind == "applied"
    assert book.apply(by_two(snooze(2, "card-8"), other) if is_signed else snooze(2, "card-8"), None).kind == "applied"


def test_what_names_no_key_stays() -> None:
    book: Rulebook = new_book()
    for record in (upsert(1), snooze(1, "card-8"), PauseRecord(id="r", version=1, by="Bob", reason="why")):
        book.apply(record, None)
    before = rulebook_bytes(book)
    assert forget_keys(book, {"card-7"}) == 0
    assert rulebook_bytes(book) == before


@pytest.mark.parametrize("key", ["e", "card", "-7", "7", "ard-", "Ad", "journe"])
def test_a_key_that_is_a_part_of_words_takes_nothing_along(key: str) -> None:
    book: Rulebook = new_book()
    for record in (upsert(1), snooze(1, "card_7e"), PauseRecord(id="r", version=1, by="Bob", reason="card_7e is his")):
        book.apply(record, None)
    before = rulebook_bytes(book)
    assert forget_keys(book, {key}) == 0
    assert rulebook_bytes(book) == before


@pytest.mark.parametrize("kind", ["unsigned", "signed", "without signers"])
def test_a_line_of_the_audit_without_its_texts_does_not_give_the_key_away(kind: str) -> None:
    """Guessing keys does not help: the line does not contain a hash of the record or the seal of the texts."""

    def line_about(key: str, owner: str) -> bytes:
        book = new_book()
        book.trust = None if kind == "without signers" else TRUST
        book.is_audited = kind == "without signers"
        record = snooze(1, key)
        data = (by_two(record) if kind == "signed" else record).to_json()
        first = (with_nonce if kind == "without signers" else by_two)(upsert(1, owner=owner)).to_json()
        _, line = (line for line in apply_records(book, (first, data), None)[0] if is_audit(line))
        assert texts_of(line).keys() == {"of", "sent_by", "why", "changes", "record", "reason"}
        return line

    def left_of(line: bytes) -> dict[str, object]:
        values: dict[str, object] = orjson.loads(without_texts(line)[1])
        # The seal has a salt, whose source is gone with the texts.
        return {name: value for name, value in values.items() if name not in ("previous", "sealed", "hash")}

    one, two = line_about("card-7", "Ada"), line_about("card-8", "Ada")
    assert one != two
    assert left_of(one) == left_of(two)
    # Even the seal of a record without a signature does not follow from the record.
    sealed = {orjson.loads(line)["sealed"] for line in (one, two, line_about("card-7", "Bob"))}
    assert len(sealed) == 3
