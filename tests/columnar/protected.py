"""A schema with protected fields, card numbers, and keys in the environment."""

import random

import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type

KEYS = f"k1 {'s3cret-one-' * 4}"
SECOND = f"k2 {'s3cret-two-' * 4} 2026-12-01T00:00:00Z"
PAYMENT = EventType(
    "payment",
    (
        Field("tx_id", Type(Kind.ID)),
        Field("event_time", Type(Kind.TIME)),
        Field("card", Type(Kind.STRING, protected="pan")),
        Field("email", Type(Kind.STRING, nullable=True, protected="sensitive")),
        Field("amount", Type(Kind.DECIMAL, scale=2)),
        Field("note", Type(Kind.STRING, nullable=True)),
    ),
)
CARDS = Schema((PAYMENT,))
VISA, AMEX = "4111111111111111", "378282246310005"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process one key."""
    monkeypatch.delenv("CEP_SECRETS_FILE", raising=False)
    monkeypatch.setenv("CEP_SECRETS", KEYS)


def card_numbers(seed: int, count: int, digits: int = 16) -> list[str]:
    """Return card numbers with right check digits."""
    chosen = random.Random(seed)
    return [with_check_digit("".join(chosen.choices("0123456789", k=digits - 1))) for _ in range(count)]


def with_check_digit(digits: str) -> str:
    """Append Luhn's check digit, computed as in the standard."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return digits + str(-total % 10)
