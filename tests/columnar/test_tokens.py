"""Protected fields hold tokens after decoding, in every format; no dead letter contains a protected value."""

import random
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.base.secrets import SecretKey, secret_keys, token_key
from cep.columnar.convert import Written
from cep.columnar.decode import Decoded, Poison, decode_json, decode_table
from cep.columnar.mapping import mapping_of
from cep.columnar.redact import redact
from cep.columnar.tokens import MANY_DIGITS, hide_card_numbers, is_card_number, tokens_of_key, with_tokens
from tests.columnar.common import ONE, assert_crafted_cost_what_others_do
from tests.columnar.protected import AMEX, CARDS, KEYS, PAYMENT, SECOND, VISA, card_numbers, keys

__all__ = ["keys"]
GOOD: dict[str, Any] = {"tx_id": "t1", "event_time": "2026-11-30T10:00:00Z", "card": VISA, "amount": 9.5}


def read(*records: dict[str, Any]) -> Decoded:
    return decode_json(CARDS, pa.array([orjson.dumps(GOOD | record) for record in records], pa.large_binary()))


@pytest.mark.usefixtures("keys")
def test_a_number_is_one_token_however_it_is_written() -> None:
    ways = [VISA, int(VISA), "4111 1111 1111 1111", "4111-1111-1111-1111", f" {VISA} "]
    decoded = [read({"card": way}) for way in ways]
    tokens = {text for part in decoded for text in part.columns["card"].to_pylist()}
    assert tokens == {secret_keys()[0].token("pan", VISA.encode())}
    table = pa.table({name: [value] for name, value in GOOD.items()})
    assert set(decode_table(CARDS, table, str).columns["card"].to_pylist()) == tokens
    floats = table.set_column(2, "card", pa.array([float(VISA)]))  # a data frame makes floats if there are nulls
    assert set(decode_table(CARDS, floats, str).columns["card"].to_pylist()) == tokens
    coded = table.set_column(2, "card", pa.array([VISA]).dictionary_encode())
    assert set(decode_table(CARDS, coded, str).columns["card"].to_pylist()) == tokens


@pytest.mark.usefixtures("keys")
def test_many_rows_have_the_tokens_of_each_row_alone() -> None:
    chosen = random.Random(5)
    numbers = card_numbers(5, 40)
    rows = [
        {"tx_id": str(i), "card": chosen.choice(numbers), "email": chosen.choice([None, "a@b"])} for i in range(300)
    ]
    decoded = read(*rows)
    key = secret_keys()[0]
    assert decoded.columns["card"].to_pylist() == [key.token("pan", str(row["card"]).encode()) for row in rows]
    email = key.token("sensitive", b"a@b")
    assert decoded.columns["email"].to_pylist() == [email if row["email"] else None for row in rows]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "card", ["4111111111111112", "411111111111", "4" * 20, "", "a@b", "٤١١١١١١١١١١١١١١١", "4111_1111"]
)
def test_what_is_no_card_number_is_null_and_unquoted(card: str) -> None:
    decoded = read({"card": card}, {"tx_id": "t2"})
    assert [(p.code, p.reason) for p in decoded.poison] == [
        ("no_card_number", "field `card`: the value is no card number")
    ]
    assert decoded.columns["card"].null_count == 1
    assert len(decoded) == 2


@pytest.mark.usefixtures("keys")
def test_card_numbers_are_those_with_their_check_digit() -> None:
    for number in (VISA, AMEX, *card_numbers(1, 30), *card_numbers(2, 30, 19), *card_numbers(3, 30, 12)):
        others = [number[:-1] + digit for digit in "0123456789" if digit != number[-1]]
        assert is_card_number(number.encode())
        assert not any(is_card_number(other.encode()) for other in others)


@pytest.mark.usefixtures("keys")
def test_a_token_of_the_job_stays_and_another_is_no_card_number() -> None:
    token = secret_keys()[0].token("pan", VISA.encode())
    stranger = SecretKey("k9", b"x" * 32).token("pan", VISA.encode())
    decoded = read({"card": token}, {"tx_id": "t2", "card": stranger})
    assert decoded.columns["card"].to_pylist() == [token, None]
    assert [p.code for p in decoded.poison] == ["no_card_number"]


@pytest.mark.usefixtures("keys")
def test_missing_and_null_are_as_in_other_fields() -> None:
    assert [p.code for p in read({"card": None}).poison] == ["missing_field"]
    assert read({"email": None}).columns["email"].null_count == 1


def test_a_key_counts_from_its_time_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEP_SECRETS_FILE", raising=False)
    monkeypatch.setenv("CEP_SECRETS", f"{SECOND}\n{KEYS}\nold {'o' * 40}")
    times = ["2026-11-30T23:59:59.999Z", "2026-12-01T00:00:00Z", "2026-11-30T23:00:00Z", "2027-01-01T00:00:00Z"]
    decoded = read(*({"tx_id": str(i), "event_time": time} for i, time in enumerate(times)))
    assert [token_key(text) for text in decoded.columns["card"].to_pylist()] == ["k1", "k2", "k1", "k2"]
    alone = [read({"event_time": time}).columns["card"].to_pylist()[0] for time in times]
    assert decoded.columns["card"].to_pylist() == alone  # the cuts of a stream make no difference
    records = pa.array([orjson.dumps(GOOD | {"event_time": day}) for day in ("30.11.2026", "01.12.2026")], pa.binary())
    by_form = decode_json(CARDS, records, mapping_of(time=Written(form="%d.%m.%Y")))
    assert [token_key(text) for text in by_form.columns["card"].to_pylist()] == ["k1", "k2"]


def test_without_a_key_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEP_SECRETS_FILE", raising=False)
    monkeypatch.delenv("CEP_SECRETS", raising=False)
    with pytest.raises(UsageError, match="no key"):
        read({})
    assert not ONE.protected  # a schema without such a field needs no key


@pytest.mark.usefixtures("keys")
def test_a_key_of_a_domain_is_that_of_its_events() -> None:
    event = read({"email": "a@b"})
    [parts] = tokens_of_key(CARDS, ("card", "note", "email"), (VISA, "plain", "a@b"))
    assert parts == [event.columns["card"][0].as_py(), "plain", event.columns["email"][0].as_py()]
    with pytest.raises(UsageError, match="neither a card number"):
        tokens_of_key(CARDS, ("card",), ("4111111111111112",))


def test_a_schema_says_what_it_protects() -> None:
    again = Schema.from_json([*CARDS.to_json()])
    assert again == CARDS
    assert [name for name, _ in again.protected] == ["card", "email"]
    assert [str(field.type) for field in PAYMENT.fields][2:4] == ["pan", "string? sensitive"]
    assert "protected" not in orjson.dumps(ONE.to_json()).decode()


@pytest.mark.usefixtures("keys")
def test_texts_that_collide_in_arrow_cost_what_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.columnar.tokens.token_of", lambda *arguments: arguments[2])

    def read_emails(texts: pa.Array) -> None:
        assert with_tokens(CARDS, {"email": texts}, lambda *_: None)["email"].equals(texts)

    assert_crafted_cost_what_others_do(read_emails)


CARD = "4111111111111111"


@pytest.mark.parametrize("separator", ["", " ", "-", ".", "/", "\t", "\u00a0", " - ", "–", "\u200b"])
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("call 2 ", " 2 calls"), ("12", "34"), ("at 2026-01-01 10:00, ", " x")]
)
def test_a_card_number_in_a_text_is_hidden(separator: str, before: str, after: str) -> None:
    """Every window of the digits is checked, so that a number next to a card number does not protect it."""
    written = separator.join(CARD[place : place + 4] for place in range(0, len(CARD), 4))
    hidden = hide_card_numbers(f"{before}{written}{after}")
    assert "•••" in hidden
    digits = "".join(filter(str.isdigit, hidden))
    assert not any(is_card_number(digits[place : place + 16].encode()) for place in range(len(digits)))


@pytest.mark.parametrize("zero", ["0", "\uff10", "\u0660", "\u0966", "\U0001d7ce"])
def test_a_card_number_in_the_digits_of_another_script_is_hidden(zero: str) -> None:
    written = CARD.translate({ord("0") + digit: ord(zero) + digit for digit in range(10)})
    assert hide_card_numbers(f"call {written} now") == "call ••• now"
    assert hide_card_numbers(f"{written[:8]} {CARD[8:]}") == "•••"
    assert MANY_DIGITS.search(f"a{written}") is not None


def test_other_numbers_stay() -> None:
    texts = ("on 2026-03-01 10:00", "tries 3 → 4", "12345678901", "call +49 30 1234567")
    assert [hide_card_numbers(text) for text in texts] == list(texts)


def test_a_long_run_of_digits_is_read_once() -> None:
    assert len(hide_card_numbers("0" * 100_000)) < 100_000


@pytest.mark.parametrize(
    "separator", [*"_-./;,:|#*\t ", "\u00a0", "\u200b", "\u2009", "__", " - ", "%20", "%2D%20", "%C2%A0"]
)
def test_a_number_is_hidden_whatever_stands_between_its_groups(separator: str) -> None:
    for number in card_numbers(3, 50):
        text = f"n {separator.join((number[:4], number[4:8], number[8:12], number[12:]))} 7"
        assert number[8:12] not in hide_card_numbers(text)


TWICE = Schema((PAYMENT, replace(PAYMENT, name="refund")))
PLACES = (
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": "%s", "amount": "much"}',
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": "%s1", "amount": 1}',
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": ["%s"], "amount": 1}',
    '{"tx_id": "a", "event_time": "%s", "card": "x", "amount": 1}',
    '{"tx_id": "a", "event_time": 1, "amount": %s}',
    '{"tx_id": "%s", "event_time": 1, "amount": "much"}',
    '{"tx_id": "a", "event_time": 1, "card_no": "%s", "amount": 1}',
    '{"%s": 1, "tx_id": "a"}',
    '{"tx_id": "a", "event_type": "%s"}',
    '{"tx_id": "a", "note": {"deep": ["%s"]}}',
    '{"tx_id": "a", "note": "paid with %s today"}',
    '{"tx_id": "a", "card": "%s',
    "%s",
    '["%s"]',
    '{"card": %s} {"card": 1}',
    '{"tx_id": "%s' + "a" * 70_000 + '", "event_time": 1, "amount": 1}',
    '{"tx_id": "a", "event_time": 1, "card": 99%s99999999999999}',
)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("place", PLACES)
def test_no_letter_has_the_number(place: str) -> None:
    for number in (VISA, *card_numbers(7, 5), *card_numbers(8, 5, 13), *card_numbers(9, 3, 19)):
        for written in (number, " ".join(number), "-".join((number[:4], number[4:8], number[8:]))):
            record = (place % written).encode()
            for poison in decode_json(CARDS, pa.array([record], pa.large_binary())).poison:
                letter = repr(redact(CARDS, poison))
                assert number not in letter.replace(" ", "").replace("-", "")


@pytest.mark.usefixtures("keys")
def test_no_mutated_record_leaves_an_address() -> None:
    chosen = random.Random(3)
    good = orjson.dumps({"tx_id": "a", "event_time": 1, "card": VISA, "email": "jo@example.org", "amount": "much"})
    for _ in range(300):
        position, length = chosen.randrange(len(good)), chosen.randrange(4)
        record = (
            good[:position] + bytes(chosen.choices(b'{}[]",:\\x', k=chosen.randrange(4))) + good[position + length :]
        )
        for poison in decode_json(CARDS, pa.array([record], pa.large_binary())).poison:
            letter = redact(CARDS, poison)
            assert "jo@example" not in letter.record + letter.reason
            assert VISA not in letter.record + letter.reason


@pytest.mark.usefixtures("keys")
def test_a_letter_tells_what_is_wrong_and_can_be_mended() -> None:
    record = orjson.dumps({"tx_id": "a", "event_time": 1, "card": VISA, "amount": "much", "other": "x"})
    [poison] = decode_json(CARDS, pa.array([record], pa.large_binary())).poison
    letter = redact(CARDS, poison)
    assert letter.reason == "field `amount`: what it has is not a value of type decimal(2)"
    fields = orjson.loads(letter.record)
    token = secret_keys()[0].token("pan", VISA.encode())
    assert fields == {
        "tx_id": "a", "event_time": 1, "card": token, "amount": "much",
        "undeclared": "1 fields that the schema does not declare",
    }  # fmt: skip
    mended = decode_json(CARDS, pa.array([orjson.dumps(fields | {"amount": 1})], pa.large_binary()))
    assert mended.columns["card"].to_pylist() == [token]


@pytest.mark.usefixtures("keys")
def test_a_reason_quotes_no_value() -> None:
    table = pa.table({"tx_id": ["a"], "event_time": [VISA + "x"], "card": [VISA], "amount": ["1"]})
    [poison] = decode_table(CARDS, table, lambda _: "{}").poison
    assert redact(CARDS, poison).reason == "field `event_time`: what it has is not a value of type time"
    [poison] = decode_table(TWICE, table.append_column("event_type", [[VISA]]), lambda _: "{}").poison
    assert redact(TWICE, poison).reason == "the event type is not one of the schema's"


@pytest.mark.usefixtures("keys")
def test_equal_records_have_one_digest() -> None:
    letters = {redact(CARDS, Poison("unreadable", "why", text)).record for text in ("{", "{", "[")}
    assert len(letters) == 2


def test_a_schema_that_protects_nothing_changes_no_letter() -> None:
    poison = Poison("unreadable", "why", VISA)
    assert redact(ONE, poison) is poison
