"""A list that a card number is looked up in takes tokens; what is refused does not show the number."""

from __future__ import annotations

import pytest

from cep.base.secrets import secret_keys
from cep.model.rule import ListRecord
from cep.rulebook.deploy import schema_of
from cep.rulebook.rulebook import Rulebook
from cep.step.rules import apply_records
from tests.columnar.protected import VISA, keys
from tests.rulebook.records import upsert

__all__ = ["keys"]
SOURCE = """
event payment { tx_id id  event_time time  card pan  shop string }
list cards: string
list shops: string
pattern listed(given: list of string = cards) by card {
  seq    x
  where  x: payment  card in given or shop in shops
}
"""


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("change", ["replace", "add"])
def test_numbers_are_refused_where_tokens_are_looked_up(change: str) -> None:
    record = upsert(1, source=SOURCE, pattern="listed", message="{key}")
    book = Rulebook(schema_of([record]), (("card",),))
    assert book.apply(record, None).kind == "applied"
    token = secret_keys()[0].token("pan", VISA.encode())

    def outcome(name: str, entries: list[str], version: int, how: str = change) -> tuple[str, str]:
        given = ListRecord(id=name, of="string", version=version, change=how, entries=entries)  # type: ignore[arg-type]
        lines, counters, _ = apply_records(book, (given.to_json(),), None)
        (kind,) = (name for name in counters if name in ("control_applied", "control_refused"))
        return kind, "".join(line.decode() for line in lines)

    kind, letter = outcome("cards", [token, VISA], 1)
    assert kind == "control_refused"
    assert "CEP320" in letter
    assert VISA not in letter
    assert outcome("cards", [token], 1) == ("control_applied", "")
    assert outcome("shops", [VISA], 1)[0] == "control_applied", "a shop may be called so"
    assert outcome("cards", [VISA], 2, "remove")[0] == "control_applied"
