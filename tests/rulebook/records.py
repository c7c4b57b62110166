"""Records and a schema for the tests of the rulebook."""

from __future__ import annotations

from typing import Any

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.base.text import utc_text
from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.rulebook import Rulebook

SOURCE = """
event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
}
pattern large_after_small(large: decimal = 5.00, window: duration = 10 min) by card_id {
  seq    small -> large_one  within window
  where  small:     payment  amount < 1.00
         large_one: payment  amount > large
  emit   amount = large_one.amount
}
"""
WITHIN_MS = 600_000

SCHEMA = Schema(
    (
        EventType(
            "payment",
            (
                Field("tx_id", Type(Kind.ID)),
                Field("event_time", Type(Kind.TIME)),
                Field("card_id", Type(Kind.STRING)),
                Field("amount", Type(Kind.DECIMAL, scale=2)),
            ),
        ),
    )
)


def upsert(version: int, rule_id: str = "r", effective_ms: int | None = None, **changes: Any) -> UpsertRecord:
    """Return a record that deploys the pattern of SOURCE."""
    fields: dict[str, Any] = {
        "id": rule_id,
        "version": version,
        "pattern": "large_after_small",
        "status": "live",
        "severity": "low",
        "owner": "o",
        "message": "{amount} on {key}",
        "source": SOURCE,
        "effective_at": None if effective_ms is None else utc_text(effective_ms),
    }
    return UpsertRecord(**{**fields, **changes})


def retire(version: int, rule_id: str = "r", effective_ms: int | None = None) -> RetireRecord:
    return RetireRecord(
        id=rule_id, version=version, effective_at=None if effective_ms is None else utc_text(effective_ms)
    )


def new_book() -> Rulebook:
    return Rulebook(SCHEMA, (("card_id",),))
