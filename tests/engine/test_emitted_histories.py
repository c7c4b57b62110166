"""Histories in `emit`: their value at the last event of a match, whenever the match becomes certain."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

import cep
from cep.lang.ir import CurrentField, History, HistoryFn, HistoryWindow, Measure, PatternIR
from cep.lang.load import load_text
from cep.nfa.compile import problems
from cep.rulebook.compatible import same_automaton
from tests.engine.bridge import batch_of, engine_answers, oracle_answers, program_of, split
from tests.engine.test_against_oracle import difference, split_or_not
from tests.oracle.random_cases import EVENT_TYPE, INT, MAYBE_INT, SCHEMA, TEXT, Case, random_case
from tests.seeds import seeds

BLOCK = 10
START = datetime(2026, 3, 1, tzinfo=UTC)


def history(fn: HistoryFn, field: str = "", by: str = "", ms: int | None = 7, *, previous: bool = False) -> History:
    argument = CurrentField(field, TEXT if field == "k" else MAYBE_INT) if field else None
    window = None if ms is None else HistoryWindow(ms, None, "UTC", previous)
    kind = INT if fn in ("count", "sum") else (TEXT if field == "k" else MAYBE_INT).as_nullable()
    return History(fn, EVENT_TYPE, argument, None, (by,) if by else (), window, None, kind)


EMITTED = (
    Measure("seen", history("count")),
    Measure("spent", history("sum", "v", "k", previous=True)),
    Measure("most", history("max", "v", ms=4)),
    Measure("was", history("last", "k", ms=None)),
)


def emitting(case: Case) -> Case:
    """Return the case with histories added to the values that it emits."""
    pattern = case.pattern
    late = None if pattern.timeout_measures is None else (*pattern.timeout_measures, *EMITTED)
    return replace(case, pattern=replace(pattern, measures=(*pattern.measures, *EMITTED), timeout_measures=late))


@pytest.fixture(autouse=True)
def every_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 1_000)


@pytest.mark.parametrize("block", seeds(30, inner=2))
def test_they_are_what_the_oracle_says_of_the_last_event(block: int) -> None:
    """Patterns have absences, time-outs and `in order`; one call, and several with the state as bytes between."""
    lines, compared = [], 0
    for case in [emitting(random_case(seed, 3)) for seed in range(block * BLOCK, (block + 1) * BLOCK)]:
        if problems(case.pattern, SCHEMA):
            continue
        compared += 1
        lines += split_or_not(case, oracle_answers(case.pattern, case.events))
    assert [line for line in lines if line] == []
    assert compared > BLOCK / 2


def test_a_rule_that_joins_later_changes_nothing_for_one_that_emits_them() -> None:
    """The stored values of bound events have their own name in the state, independent of other rules."""
    case = emitting(next(c for c in (random_case(s, 3) for s in range(400)) if c.pattern.timeout_measures))
    beside = emitting(random_case(1, 2)).pattern
    other = replace(beside, measures=(Measure("n", history("count", ms=3)), *beside.measures))
    batch = batch_of(SCHEMA, case.events)
    parts = split(batch, Random(5))
    alone, crowded = program_of(SCHEMA, case.pattern), program_of(SCHEMA, case.pattern, other)
    programs = [alone if number % 2 else crowded for number in range(len(parts))]
    expected = oracle_answers(case.pattern, case.events)
    assert difference(case, engine_answers(programs, parts), expected, "with a rule that comes and goes") == ""


DECLARED = """\
event payment {
  tx_id   id
  event_time time
  card_id string
  merchant_id string
  amount  decimal(2)
  country string
}
"""
EMIT = """\
  emit   spent = sum(payment.amount over 7 d by merchant_id), tries = count(payment over previous 1 h),
         usual = avg(payment.amount over 30 d), was = last(payment).country, new = first_seen(merchant_id)
"""
FEATURES = {
    "spent": "sum(payment.amount over 7 d by merchant_id)",
    "tries": "count(payment over previous 1 h)",
    "usual": "avg(payment.amount over 30 d)",
    "was": "last(payment).country",
    "new": "first_seen(merchant_id)",
}


def stream() -> pa.Table:
    random = Random(3)
    rows = [
        {
            "tx_id": f"t{number:04}",
            "event_time": START + timedelta(minutes=number * 7),
            "card_id": f"c{random.randrange(3)}",
            "merchant_id": f"m{random.randrange(2)}",
            "amount": Decimal(random.randrange(100, 90_000)).scaleb(-2),
            "country": random.choice(["NL", "FR"]),
        }
        for number in range(120)
    ]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    "pattern",
    [
        "seq a -> b within 2 h\n  where a: payment amount > 500  b: payment amount > a.amount",
        "seq a -> !b within 40 min\n  where a: payment amount > 500  b: payment amount > 700",
    ],
)
def test_they_are_the_features_of_the_last_event_and_have_types(pattern: str) -> None:
    rules = cep.parse(f"{DECLARED}pattern p by card_id {{\n  {pattern}\n{EMIT}}}\n")
    alerts = rules.match(stream())
    assert len(alerts) > 5
    table = cep.features(stream(), FEATURES, by="card_id", declare=DECLARED)
    features = {row["tx_id"]: row for row in table.to_pylist()}
    measures = alerts.measures("p")
    assert measures.schema.field("spent").type == pa.decimal128(21, 2)
    for alert, values in zip(alerts.table.to_pylist(), measures.to_pylist(), strict=True):
        at_last = features[alert["events"][-1]["event_id"]]
        for name in ("spent", "tries", "usual", "was"):
            assert values[name] == at_last[name], name
    shown = str(alerts.why(-1))
    assert f"spent = {measures['spent'][-1]}" in shown
    assert f'was = "{measures["was"][-1]}"' in shown


def _pattern(text: str) -> PatternIR:
    checked = load_text(DECLARED + text)
    assert checked.ok
    return checked.patterns["p"]


@pytest.mark.parametrize(("timeout", "may"), [("", True), ("on timeout emit n = count(a)", False)])
def test_runs_go_on_in_a_version_that_emits_another_past_only_if_it_is_asked_at_once(timeout: str, may: bool) -> None:
    """Values for a later emit are stored when the event comes, and the version before stored other values."""
    schema = load_text(DECLARED).schema
    one, other = (
        _pattern(
            "pattern p by card_id {\n  seq a -> b within 1 h\n  where a: payment amount > 5  b: payment amount > 9\n"
            f"  emit n = count(payment over 1 d where amount > {least})\n  {timeout}\n}}\n"
        )
        for least in (1, 2)
    )
    assert same_automaton(one, other, schema) is may
    assert same_automaton(one, one, schema)


def test_the_last_event_has_the_fields_of_all_that_may_be_last() -> None:
    declared = DECLARED + "event login { login_id id  event_time time  card_id string  device string }\n"
    text = "pattern p by card_id {{\n  seq {seq} within 1 h\n  where a: payment  b: login\n  emit n = {value}\n}}\n"
    by_merchant, by_card = "count(payment over 1 d by merchant_id)", "count(payment over 1 d by card_id)"
    for seq, value, is_good in [
        ("b -> a", by_merchant, True),
        ("a -> b", by_merchant, False),
        ("a -> b", by_card, True),
        ("a -> b?", by_merchant, False),
        ("a -> !b", by_merchant, True),
        ("(a | b)", by_merchant, False),
        ("(b & a)", by_merchant, False),
        ("(b & a)", "first_seen(card_id)", True),
        ("b -> a", "sum(a.amount) / count(payment over 1 d)", True),
    ]:
        checked = load_text(declared + text.format(seq=seq, value=value))
        codes = {diagnostic.code for diagnostic in checked.diagnostics if diagnostic.is_error}
        assert codes == (set() if is_good else {"CEP203"}), (seq, value)
