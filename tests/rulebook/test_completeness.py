"""For a rule that arrives while a job runs: the time from which the job has kept the events of its histories."""

from __future__ import annotations

import pytest

from cep.base.utc import utc_text
from cep.lang.load import load_text
from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.outcome import RuleReport
from cep.rulebook.publish import lacking_past
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.rule_status import rule_status

EVENTS = """
event payment { tx_id id  event_time time  card_id string  shop_id string?  amount decimal(2)  retain_it }
event login { login_id id  event_time time  card_id string  shop_id string? }
"""
DOMAINS = (("card_id",), ("shop_id",))
T1_MS, T2_MS, HOUR_MS = 1_700_000_000_000, 1_700_000_100_000, 3_600_000


def rule(name: str, condition: str, retain: str = "", version: int = 1, by: str = "card_id") -> UpsertRecord:
    events = EVENTS.replace("retain_it", retain)
    source = f"{events}\npattern p by {by} {{ seq a where a: payment {condition} }}"
    checked = load_text(source)
    assert checked.ok, [d.message for d in checked.diagnostics]
    fields = {"id": name, "version": version, "pattern": "p", "status": "live", "severity": "low", "owner": "o"}
    return UpsertRecord.model_validate({**fields, "message": "m", "source": source})


def book_of(retain: str = "") -> Rulebook:
    return Rulebook(load_text(EVENTS.replace("retain_it", retain)).schema, DOMAINS)


def reported(book: Rulebook, name: str) -> RuleReport:
    (rule_report,) = (report for report in book.report().rules if report.rule_id == name)
    return rule_report


def since(book: Rulebook, name: str) -> list[int]:
    return [past.from_ms for past in reported(book, name).past]


def test_what_is_there_before_the_first_event_lacks_nothing() -> None:
    book = book_of()
    assert book.apply(rule("a", "count(payment over 30 d) > 3"), None).reason == ""
    assert reported(book, "a").past == ()


def test_a_rule_that_comes_later_is_told_from_when_its_windows_are_whole() -> None:
    book = book_of()
    book.apply(rule("a", "amount > 1.00"), None)
    outcome = book.apply(rule("b", "count(payment over 1 h) > 3"), T1_MS)
    (past,) = reported(book, "b").past
    assert (past.from_ms, past.whole_ms, past.event_type) == (T1_MS + 1, T1_MS + HOUR_MS, "payment")
    assert outcome.kind == "applied"
    assert outcome.reason == past.text
    for word in ("count(payment over 1 h)", utc_text(T1_MS + 1), utc_text(T1_MS + HOUR_MS), "`retain`"):
        assert word in outcome.reason
    status = rule_status(book)
    assert lacking_past(status, [rule("b", "count(payment over 1 h) > 3")]) == [f"b version 1: {outcome.reason}"]
    assert lacking_past(status, [rule("a", "amount > 1.00")]) == []
    again = rulebook_from_bytes(rulebook_bytes(book), book.schema, DOMAINS)
    assert rulebook_bytes(again) == rulebook_bytes(book)
    assert (again.report().rules, again.fingerprint) == (book.report().rules, book.fingerprint)


@pytest.mark.parametrize(
    ("there", "later", "is_kept"),
    [
        ("count(payment over 30 d) > 1", "count(payment over 1 h) > 1", True),
        ("count(payment over 1 h) > 1", "count(payment over 30 d) > 1", False),
        ("count(payment over 30 d) > 1", "sum(payment.amount over 1 h) > 1.00", False),
        ("sum(payment.amount over 30 d) > 1.00", "max(payment.amount over 1 h) > 1.00", True),
        ("sum(payment.amount over 30 d) > 1.00", "median(payment.amount over day) > 1.00", True),
        # The first stores only events with a shop, and the third only events with an amount above 5.
        ("distinct(payment.shop_id over 30 d) > 1", "count(payment over 1 h) > 1", False),
        ("distinct(payment.shop_id over 30 d) > 1", "count(payment over 1 h by shop_id) > 1", True),
        ("count(payment over 30 d where amount > 5.00) > 1", "count(payment over 1 h) > 1", False),
        ("count(payment over 30 d where amount > 5.00) > 1", "count(payment over 1 h where amount > 5.00) > 1", True),
        ("count(payment over 30 d) > 1", "count(login over 1 h) > 1", False),
        # For these only one event is stored.
        ("exists(payment over previous 30 d)", "count(payment over 1 h) > 1", False),
        ("exists(payment over previous 30 d)", "exists(payment over previous 30 d) and amount > 2.00", True),
        ("count(payment over 30 d) > 1", "exists(payment over previous 1 h)", True),
        ("count(payment over 30 d by shop_id) > 1", "first_seen(shop_id) < 1 h", False),
        ("first_seen(shop_id) < 1 d", "first_seen(shop_id) < 1 h", True),
        # Panes can begin from stored events, but events cannot be restored from panes.
        (
            "approx_percentile(payment.amount over 1 d, 50) > 1.0",
            "approx_percentile(payment.amount over 1 d, 9) > 1.0",
            True,
        ),
        ("distinct(payment.shop_id over 2 d) > 1", "approx_distinct(payment.shop_id over 1 d) > 1", True),
        ("approx_distinct(payment.shop_id over 2 d) > 1", "distinct(payment.shop_id over 1 d) > 1", False),
    ],
)
def test_what_other_rules_keep_is_there(there: str, later: str, is_kept: bool) -> None:
    book = book_of()
    book.apply(rule("a", there), None)
    book.apply(rule("b", later), T1_MS)
    assert since(book, "b") == ([] if is_kept else [T1_MS + 1])


def test_a_window_of_panes_is_whole_a_pane_later() -> None:
    book = book_of()
    book.apply(rule("a", "amount > 1.00"), None)
    book.apply(rule("b", "approx_distinct(payment.shop_id over 64 h) > 3"), T1_MS)
    assert since(book, "b") == [T1_MS + 1 + HOUR_MS]


def test_without_a_window_it_is_never_whole() -> None:
    book = book_of()
    book.apply(rule("a", "amount > 1.00"), None)
    outcome = book.apply(rule("b", "not exists(login)"), T1_MS)
    assert [past.whole_ms for past in reported(book, "b").past] == [None]
    assert "what was before is not known" in outcome.reason


def test_what_came_later_itself_is_known_from_its_own_start() -> None:
    book = book_of()
    book.apply(rule("a", "amount > 1.00"), None)
    book.apply(rule("b", "count(payment over 1 h) > 1"), T1_MS)
    book.apply(rule("b", "count(payment over 1 h) > 2", version=2), T2_MS)
    book.apply(rule("c", "count(payment over 1 h) > 3"), T2_MS)
    assert since(book, "c") == [T1_MS + 1]
    book.apply(RetireRecord(id="b", version=3), T2_MS)
    book.apply(RetireRecord(id="c", version=2), T2_MS)
    book.forget(T2_MS + HOUR_MS)
    book.apply(rule("d", "count(payment over 1 h) > 3"), T2_MS + HOUR_MS)
    assert since(book, "d") == [T2_MS + HOUR_MS + 1], "nobody has kept it for some time"


def test_retain_keeps_what_no_rule_asks_for_where_a_key_has_any_rule() -> None:
    book = book_of("retain 30 d")
    book.apply(rule("a", "amount > 1.00", "retain 30 d"), None)
    book.apply(rule("b", "sum(payment.amount over 1 d) > 1.00", "retain 30 d"), T1_MS)
    book.apply(rule("c", "sum(payment.amount over 31 d) > 1.00", "retain 30 d"), T1_MS)
    book.apply(rule("d", "count(payment over 1 d) > 1", "retain 30 d", by="shop_id"), T1_MS)
    book.apply(rule("e", "count(payment over 2 d) > 1", "retain 30 d", by="shop_id"), T2_MS)
    assert [since(book, name) for name in "bcde"] == [[], [T1_MS + 1], [T1_MS + 1], [T1_MS + 1]]
