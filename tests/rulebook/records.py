"""Records and a schema for the tests of the rulebook."""

from typing import Any

from cep.base.text import utc_text
from cep.lang.load import load_text
from cep.model.rule import ControlRecord, RetireRecord, UpsertRecord
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.trust import Trust

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

SCHEMA = load_text(SOURCE).schema


def upsert(version: int, rule_id: str = "r", effective_ms: int | None = None, **changes: Any) -> UpsertRecord:
    """Return a record that deploys the pattern of SOURCE."""
    fields: dict[str, Any] = {
        "id": rule_id, "version": version, "pattern": "large_after_small", "status": "live", "severity": "low",
        "owner": "o", "message": "{amount} on {key}", "source": SOURCE,
        "effective_at": None if effective_ms is None else utc_text(effective_ms),
    }  # fmt: skip
    return UpsertRecord(**{**fields, **changes})


def retire(version: int, rule_id: str = "r", effective_ms: int | None = None) -> RetireRecord:
    return RetireRecord(
        id=rule_id, version=version, effective_at=None if effective_ms is None else utc_text(effective_ms)
    )


def new_book(*records: ControlRecord, trust: Trust | None = None) -> Rulebook:
    """Return a rulebook to which the records were applied before the first event."""
    book = Rulebook(SCHEMA, (("card_id",),))
    book.trust = trust
    for record in records:
        book.apply(record, None)
    return book


def restarted(book: Rulebook) -> Rulebook:
    """Return the rulebook that a job with the same signers reads from its saved bytes."""
    again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
    again.trust = book.trust
    return again
