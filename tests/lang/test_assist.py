"""The meaning of names and the completions at a place, without an editor."""

from __future__ import annotations

from cep.lang.edit.assist import meaning, words_at
from cep.lang.edit.symbols import Named, place_at, places
from cep.lang.functions import FUNCTIONS
from cep.lang.load import load_text
from tests.lang.common import EVENTS
from tests.lang.generate import random_file

TEXT = (
    EVENTS
    + """list bad = ["KP", "IR"]
define small(limit) = amount < limit and country in bad
## What it is for.
pattern p(cut: decimal = 2.00) by card_id {
  seq a -> b within 1 h
  where a: transaction small(cut)
        b: transaction status == approved and amount > a.amount
  skip to first b
  emit n = b.amount
}
test "t" of p with (cut = 3.00) {
  c: 0s transaction amount=1 status=approved
  expect match { n: 1.00 }
}
"""
)


def words(part: str) -> list[str]:
    """Return the completions after a part of the text."""
    checked = load_text(TEXT)
    return [w.text for w in words_at(checked, "<text>", TEXT, TEXT.index(part) + len(part))]


def test_every_function_is_described() -> None:
    for name, function in FUNCTIONS.items():
        assert function.shown.startswith(f"{name}("), name


def test_each_name_is_found_where_it_stands() -> None:
    checked = load_text(TEXT)
    symbols = places(checked.files, checked.resolved)
    for place in symbols:
        assert TEXT[place.span.start : place.span.end] == place.named.name
    counts = {
        Named("variable", "b", "p"): 4,
        Named("parameter", "cut", "p"): 3,
        Named("argument", "limit", "small"): 2,
        Named("list", "bad"): 2,
        Named("definition", "small"): 2,
        Named("value", "n", "p"): 2,
        Named("pattern", "p"): 2,
        Named("symbol", "approved"): 3,
        Named("event", "transaction"): 4,
    }
    assert {named: sum(p.named == named for p in symbols) for named in counts} == counts


def test_every_name_of_random_files_has_a_declaration() -> None:
    for seed in range(30):
        checked = load_text(random_file(seed))
        symbols = places(checked.files, checked.resolved)
        declared = {p.named for p in symbols if p.declares}
        loose = {p.named for p in symbols if not p.declares and p.named.kind not in ("function", "value")}
        assert loose <= declared, seed


def test_meanings() -> None:
    checked = load_text(TEXT)
    assert "define small(limit) = amount < limit and country in bad" in meaning(checked, Named("definition", "small"))
    assert '["KP", "IR"]' in meaning(checked, Named("list", "bad"))
    assert "What it is for." in meaning(checked, Named("pattern", "p"))
    assert "symbol of `status`" in meaning(checked, Named("symbol", "approved"))
    assert "event transaction" in meaning(checked, Named("event", "transaction"))
    assert meaning(checked, Named("field", "nothing")) == ""


def test_a_place_is_found_at_both_of_its_ends() -> None:
    checked = load_text(TEXT)
    start = TEXT.index("small(cut)")
    symbols = places(checked.files, checked.resolved)
    for offset in (start, start + 5):
        place = place_at(symbols, "<text>", offset)
        assert place is not None
        assert place.named == Named("definition", "small")


def test_what_is_offered() -> None:
    assert words("amount > a.")[:3] == ["tx_id", "event_time", "card_id"]
    assert words("status == ")[:3] == ["approved", "declined", "reversed"]
    assert words("  where a:") == ["transaction"]
    assert {"pattern", "event", "list"} <= set(words("n = b.amount\n}\n"))
    assert {"cut", "small", "amount", "b"} <= set(words("status == approved and "))
