"""Functions of one event and of past events: their types, accepted arguments, and refused ones."""

import pytest

from cep.base.limits import REGEX_CHARS_MAX
from cep.base.schema import Schema
from cep.lang.check.bind import bind
from cep.lang.format.file import format_text
from cep.lang.ir import History
from cep.lang.lint.run import lint
from cep.lang.load import load_text
from cep.lang.show import show_expr
from cep.lang.walk import histories
from tests.lang.common import EVENTS, checked_pattern, pattern_codes
from tests.lang.dump import dump_expr


def typed(text: str) -> str:
    where = checked_pattern(f"seq a where a: transaction {text}").variable("a").where
    assert where is not None
    again = checked_pattern(f"seq a where a: transaction {show_expr(where)}").variable("a").where
    assert again == where, show_expr(where)
    return dump_expr(where)


@pytest.mark.parametrize(
    ("text", "dump"),
    [
        ("round(amount) == 5", "(round(amount:decimal(2), 0:int):int == 5:int)"),
        ("round(amount, 1) == 5.1", "(round(amount:decimal(2), 1:int):decimal(1) == 51:decimal(1))"),
        ("round(amount, 2) == 5.1", "(amount:decimal(2) == 510:decimal(2))"),
        ("floor(lat) == 5.0", "(floor(lat:float):float == 5.0:float)"),
        ("ceil(tries) == 5", "(tries:int == 5:int)"),
        ('lower(country) == "fr"', '(lower(country:string?):string? == "fr")'),
        ('upper(substring(country, 1, 1)) in ["F"]', None),
        ("length(card_id) > 12", "(length(card_id:string):int > 12:int)"),
        ('ends_with(card_id, "0")', 'ends_with(card_id:string, "0"):bool'),
        ('contains(lower(card_id), "x")', 'contains(lower(card_id:string):string, "x"):bool'),
        ('card_id matches "^4[0-9]+$"', 'matches(card_id:string, "^4[0-9]+$"):bool'),
        ('card_id not matches "x"', '(not matches(card_id:string, "x"):bool)'),
        ('in_cidr(card_id, "10.0.0.0/8")', 'in_cidr(card_id:string, "10.0.0.0/8"):bool?'),
        ('hour(event_time, "Europe/Paris") between 0 and 5', None),
        ('weekday(event_time, "UTC") == 7', '(weekday(event_time:time, "UTC"):int == 7:int)'),
        ('event_time - date(event_time, "UTC") < 6 h', None),
    ],
)  # fmt: skip
def test_types(text: str, dump: str | None) -> None:
    result = typed(text)
    assert dump is None or result == dump


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("round(country) == 1", "CEP301"),
        ("round(amount, 19) == 1", "CEP301"),
        ("round(amount, 1.0) == 1", "CEP301"),
        ("round(amount, 1 ms) == 1", "CEP301"),
        ("round(amount, true) == 1", "CEP301"),
        ("round(amount, 1, 2) == 1", "CEP307"),
        ("lower(amount) == 1", "CEP301"),
        ("lower() == 1", "CEP307"),
        ('a.country like "x"', "CEP314"),
        ('lower("X") == country', "CEP314"),
        ("starts_with(country, card_id)", "CEP301"),
        ("substring(country, 0, 2) == card_id", "CEP316"),
        ('substring(country, "1", 2) == card_id', "CEP301"),
        ('country matches "("', "CEP315"),
        (f'country matches "{"a" * (REGEX_CHARS_MAX + 1)}"', "CEP315"),
        ('in_cidr(country, "10.0.0.0/33")', "CEP316"),
        ("in_cidr(country, 5)", "CEP301"),
        ('hour(event_time, "Mars/Olympus") == 1', "CEP316"),
        ("hour(event_time) == 1", "CEP307"),
        ('hour(amount, "UTC") == 1', "CEP301"),
        ('hour(a.event_time, "UTC") == 1', "CEP314"),
        ("hour(event_time, country) == 1", "CEP316"),
    ],
)
def test_refused(text: str, code: str) -> None:
    assert pattern_codes(f"seq a where a: transaction {text}") == [code]


def test_a_parameter_as_the_constant_is_checked_when_it_is_bound() -> None:
    pattern = checked_pattern(
        "seq a where a: transaction country matches form", 'pattern p(form: string = "^K") by card_id'
    )
    assert bind(pattern, {})[0] is not None
    assert [d.code for d in bind(pattern, {"form": "("})[1]] == ["CEP503"]


def test_matches_is_no_reserved_word() -> None:
    pattern = checked_pattern(
        "seq matches where matches: transaction amount > 1 emit n = count(matches), matches = matches.amount"
    )
    assert [v.name for v in pattern.variables] == ["matches"]


def test_emit_has_no_event_under_test() -> None:
    assert pattern_codes("seq a emit c = lower(a.country)") == ["CEP314"]


MORE = """
event login { login_id id  event_time time  card_id string  ok bool }
event ping { p id event_time time }
define larger(n) = exists(transaction over previous 1 h where amount < n)
define is_larger(n) = larger(n)
define total(v) = sum(v * 1 over 1 h)
define count_by(country) = count(transaction over 1 h by country)
define is_new(device_id) = first_seen(device_id) < 1 d
define card_of(login) = last(login).card_id
"""


def typed_history(text: str) -> History:
    pattern = checked_pattern(f"seq a where a: transaction {text}", before=MORE)
    (history,) = histories(pattern)
    shown = show_expr(history)
    written = shown if str(history.type) == "bool" else f"{shown} is not null"
    (again,) = histories(checked_pattern(f"seq a where a: transaction {written}", before=MORE))
    assert again == history, shown
    return history


@pytest.mark.parametrize(
    ("text", "dump"),
    [
        (
            "count(transaction over 1 h where status == declined) > 5",
            "past count(transaction over 3600000 ms where (status:enum == declined#1)):int",
        ),
        (
            "amount > 3 * avg(transaction.amount over previous 30 d)",
            "past avg(transaction amount:decimal(2) over previous 2592000000 ms):float?",
        ),
        ("distinct(transaction.country over 1 s) > 2", "past distinct(transaction country:string? over 1000 ms):int"),
        (
            "sum(transaction.amount over 24 h by country) > 100",
            "past sum(transaction amount:decimal(2) over 86400000 ms by country):decimal(2)",
        ),
        ("last(transaction).country != country", "past last(transaction country:string?):string?"),
        (
            "last(transaction over 1 h where online).amount > 1",
            "past last(transaction amount:decimal(2) over 3600000 ms where online:bool):decimal(2)?",
        ),
        ("first(transaction).country == country", "past first(transaction country:string?):string?"),
        (
            "first(transaction over 1 h by country where online).amount > 1",
            "past first(transaction amount:decimal(2) over 3600000 ms by country where online:bool):decimal(2)?",
        ),
        (
            "not exists(transaction over previous 100 d)",
            "past exists(transaction over previous 8640000000 ms):bool",
        ),
        ("exists(login)", "past exists(login):bool"),
        ("count_by(status) > 1", "past count(transaction over 3600000 ms by status):int"),
        ("is_new(country)", "past first_seen(any by country):duration?"),
        ("card_of(login) is null", "past last(login card_id:string):string?"),
        (
            "is_larger(5)",
            "past exists(transaction over previous 3600000 ms where (amount:decimal(2) < 500:decimal(2))):bool",
        ),
        ("first_seen(device_id) < 1 d", "past first_seen(any by device_id):duration?"),
        (
            'max(transaction.amount over day in "Europe/Paris") > 1',
            "past max(transaction amount:decimal(2) over day in Europe/Paris):decimal(2)?",
        ),
        ("median(transaction.lat over month) > 1", "past median(transaction lat:float over month in UTC):float?"),
        (
            "percentile(transaction.lat * 2 over 30 d, 95) > 1",
            "past percentile(transaction (lat:float * 2.0:float):float over 2592000000 ms, 95:int):float?",
        ),
        ("count(login over 1 h by (card_id) where not ok) == 0", None),
        (
            "approx_percentile(transaction.amount over previous 1 h where amount > 1, 95) > 1",
            (
                "past approx_percentile(transaction amount:decimal(2) over previous 3600000 ms "
                "where (amount:decimal(2) > 100:decimal(2)), 95:int):float?"
            ),
        ),
        ("approx_distinct(transaction.country over 90 d) > 5", None),
    ],
)  # fmt: skip
def test_types_of_histories(text: str, dump: str | None) -> None:
    result = typed_history(text)
    assert dump is None or dump_expr(result) == dump


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("count(transaction) > 1", "CEP318"),
        ("avg(transaction.amount over 30) > 1", "CEP104"),
        ("avg(transaction.amount over 0 s) > 1", "CEP402"),
        ("avg(transaction.amount over fortnight) > 1", "CEP318"),
        ('avg(transaction.amount over day in "Nowhere") > 1', "CEP316"),
        ("avg(transaction over 1 h) > 1", "CEP317"),
        ("avg(amount over 1 h) > 1", "CEP202"),
        ("avg(transaction.amount) > 1", "CEP318"),
        ("count(transactoin over 1 h) > 1", "CEP202"),
        ("count(ping over 1 h) > 1", "CEP417"),
        ("sum(transaction.country over 1 h) > 1", "CEP301"),
        ("sum(transaction.amout over 1 h) > 1", "CEP203"),
        ("sum(transaction.amount over 1 h by contry) > 1", "CEP203"),
        ("count(login over 1 h by country) > 1", "CEP203"),
        ("count(transaction over 1 h where amount) > 1", "CEP302"),
        ("count(transaction over 1 h where a.amount > 1) > 1", "CEP204"),
        ("count(transaction over 1 h where count(login over 1 h) > 1) > 1", "CEP317"),
        ("larger(amount)", "CEP317"),
        ("is_larger(amount)", "CEP317"),
        ("larger(a.amount)", "CEP204"),
        ("larger(count(login over 1 h) * 1)", "CEP317"),
        ("count_by(5) > 1", "CEP317"),
        ("count_by(contry) > 1", "CEP203"),
        ("total(amount) > 1", "CEP317"),
        ("total(a.amount) > 1", "CEP204"),
        ("percentile(transaction.amount over 1 h) > 1", "CEP307"),
        ("percentile(transaction.amount over 1 h, 101) > 1", "CEP317"),
        ("approx_distinct(transaction.country) > 1", "CEP318"),
        ("approx_distinct(transaction.country over 1 h by country) > 1", "CEP319"),
        ("approx_distinct(transaction.country over day) > 1", "CEP319"),
        ("approx_percentile(transaction.amount over 1 h) > 1", "CEP307"),
        ("approx_percentile(transaction.country over 1 h, 50) > 1", "CEP301"),
        ("approx_percentile(transaction.amount over month, 50) > 1", "CEP319"),
        ("last(transaction over 1 h) == 1", "CEP317"),
        ("first(transaction over 1 h) == 1", "CEP317"),
        ("first(transaction).contry == country", "CEP203"),
        ("last(transaction).contry == country", "CEP203"),
        ("first_seen(amount + 1) < 1 d", "CEP317"),
        ("first_seen() < 1 d", "CEP307"),
        ("abs(transaction.amount over 1 h) > 1", "CEP317"),
        ("count(transaction over", "CEP105"),
        ("count(transaction over 1 h by 5) > 1", "CEP105"),
    ],
)
def test_refused_histories(text: str, code: str) -> None:
    assert code in pattern_codes(f"seq a where a: transaction {text}", before=MORE)


def test_a_variable_goes_before_an_event_type_of_its_name() -> None:
    pattern = checked_pattern("seq transaction+ -> b within 1 h where b: transaction count(transaction) > 1")
    assert not list(histories(pattern))
    argument = checked_pattern("seq a -> b where a: transaction b: transaction card_of(a) == card_id", before=MORE)
    assert not list(histories(argument))


def test_windows_and_percentages_may_be_parameters() -> None:
    header = "pattern p(back: duration = 1 h, share: int = 95) by card_id"
    pattern = checked_pattern("seq a where a: transaction percentile(transaction.amount over back, share) > 1", header)
    bound, mistakes = bind(pattern, {"back": "2 h"})
    assert bound is not None
    assert not mistakes
    (history,) = histories(bound)
    assert history.window is not None
    assert history.window.ms == 7_200_000
    assert [d.code for d in bind(pattern, {"share": 0})[1]] == ["CEP504"]


def test_retain() -> None:
    text = EVENTS.replace("  online      bool\n", "  online      bool\n  retain 100 d\n")
    schema = load_text(text).schema
    assert schema.event_types[0].retain_ms == 100 * 86_400_000
    assert Schema.from_json(list(schema.to_json())) == schema
    assert "  retain      100 d\n}" in (format_text(text)[0] or "")
    assert "  retain      100d\n" in (format_text(text.replace("100 d", "100d\n  more int"))[0] or "")
    for wrong, code in (("retain 100", "CEP104"), ("retain 0 s", "CEP402"), ("retain 1 d retain 2 d", "CEP106")):
        assert code in [d.code for d in load_text(text.replace("retain 100 d", wrong)).diagnostics]


def test_a_field_may_be_called_retain() -> None:
    checked = load_text("event t { i id event_time time retain int }")
    assert [f.name for f in checked.schema.event_types[0].fields] == ["i", "event_time", "retain"]


def test_a_look_back_beyond_the_retention_is_a_finding() -> None:
    events = EVENTS.replace("  online      bool\n", "  online      bool\n  retain 10 d\n")
    for window, expected in (("9 d", False), ("11 d", True), ("month", True), ("week", False)):
        pattern = f"pattern p by card_id {{ seq a where a: transaction count(transaction over {window}) > 1 }}"
        lints = [d.code for d in lint(load_text(events + pattern))]
        assert ("CEP705" in lints) == expected, window


def test_format_keeps_them() -> None:
    text = (
        "pattern p by k { seq a where a: t count( t over previous  1 h by( m ,n )where x==1 )>5 "
        'and last( t ).c!=c and sum(t.a over day in "UTC")<5 }'
    )
    formatted, _ = format_text(text)
    assert formatted is not None
    assert "count(t over previous 1 h by (m, n) where x == 1) > 5 and last(t).c != c" in formatted
    assert 'sum(t.a over day in "UTC") < 5' in formatted
