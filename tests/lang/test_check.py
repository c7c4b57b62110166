"""Declarations to names; whole patterns: event types, keys, values, limits, `produce`; arguments for parameters."""

from decimal import Decimal

import pytest

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.base.schema import Kind, Type
from cep.lang.check.bind import bind
from cep.lang.check.order import levels_of
from cep.lang.field_names import Role, role_of
from cep.lang.format.file import format_text
from cep.lang.ir import Param, PatternIR, SequenceNode, VarNode
from cep.lang.load import load_text
from tests.lang.common import EVENTS, checked_pattern, codes, pattern_codes
from tests.lang.dump import dump_expr, dump_pattern
from tests.runners.laundering import NAMES, SOURCE

LOGIN = "event login { login_id id event_time time card_id string ok bool }\n"
OTHER = "event news { news_id id event_time time title string }\n"


def test_a_variable_without_condition_is_of_the_only_event_type() -> None:
    pattern = checked_pattern("seq a -> b")
    assert [v.event_type for v in pattern.variables] == ["transaction", "transaction"]
    assert codes(EVENTS + LOGIN + "pattern p by card_id { seq a }") == ["CEP216"]


def test_over_all_sees_every_event_type_that_has_the_key() -> None:
    text = EVENTS + LOGIN + OTHER + "pattern p by card_id { seq a where a: transaction %s }"
    assert load_text(text % "").patterns["p"].event_types == ("transaction",)
    assert load_text(text % "over all").patterns["p"].event_types == ("transaction", "login")


def test_keys() -> None:
    assert checked_pattern("seq a", "pattern p by (card_id, country)").key == ("card_id", "country")
    assert pattern_codes("seq a", "pattern p by card") == ["CEP417"]
    assert pattern_codes("seq a", "pattern p by lat") == ["CEP417"]
    assert pattern_codes("seq a", "pattern p by (card_id, card_id)") == ["CEP207"]


def test_values_need_names_of_their_own() -> None:
    assert pattern_codes("seq a emit x = a.lat, x = a.lon") == ["CEP207"]
    assert pattern_codes("seq a emit x = null") == ["CEP303"]
    assert pattern_codes("seq a emit x = 1 on timeout emit x = 2") == ["CEP419"]


def test_everything_may_be_unbound_on_timeout() -> None:
    pattern = checked_pattern("seq a -> b within 1 h emit x = b.lat on timeout emit x = b.lat")
    assert not pattern.measures[0].value.type.nullable
    assert pattern.timeout_measures is not None
    assert pattern.timeout_measures[0].value.type.nullable


def test_a_faulty_event_type_is_reported_once_and_keeps_its_patterns_out() -> None:
    text = "event t { i id event_time time k string a decimal }\npattern p by k { seq v where v: t }"
    checked = load_text(text)
    assert [d.code for d in checked.diagnostics] == ["CEP212"]
    assert not checked.patterns
    assert not checked.schema.event_types


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("n: int = 3 in 1..5", []),
        ("n: int = 3, in 1..5, m: int = 2", []),
        ("d: decimal(4) = -0.5 in -1..1", []),
        ("w: duration = 10 min in 1 min .. 1 h", []),
        ('s: string = "x", b: bool = true, f: float = 1, e: enum(x, y) = y', []),
        ("n: int, n: int", ["CEP207"]),
        ("n: int = 3 in 5..1", ["CEP505"]),
        ('s: string = "x" in 1..2', ["CEP505", "CEP505", "CEP505"]),
        ("e: enum(x, y) = z", ["CEP505"]),
        ("w: duration = 5", ["CEP505"]),
        ("n: integer", ["CEP212"]),
        ("n: int?", ["CEP506"]),
        ("d: decimal(19)", ["CEP308"]),
        ("amount: int", ["CEP508"]),
    ],
)
def test_parameters(params: str, expected: list[str]) -> None:
    assert pattern_codes("seq a", f"pattern p({params}) by card_id") == expected


def test_a_decimal_parameter_without_scale_has_the_digits_of_its_default_but_those_of_money_at_least() -> None:
    pattern = checked_pattern("seq a", "pattern p(a1: decimal = 5, b1: decimal = 1.005, c1: decimal(1) = 2) by card_id")
    assert [p.type.scale for p in pattern.params] == [2, 3, 1]
    assert [p.default for p in pattern.params] == [500, 1005, 20]


def test_until_sees_the_fields_of_every_event_type_of_the_pattern() -> None:
    text = EVENTS + LOGIN + "pattern p by card_id { seq a+ until (ok) -> b within 1 h where a: transaction %s }"
    assert [d.code for d in load_text(text % "b: login").diagnostics] == []
    assert [d.code for d in load_text(text % "b: transaction").diagnostics] == ["CEP201"]


@pytest.mark.parametrize(
    "body",
    [
        "seq a where a: login exists(transaction over 1 h where amount > 5)",
        "over all seq a+ until (amount > 5) where a: login",
    ],
)
def test_a_parameter_hides_no_field_of_another_event_type(body: str) -> None:
    assert pattern_codes(body, "pattern p(amount: int = 3) by card_id", LOGIN) == ["CEP508"]
    assert pattern_codes(body.replace("amount", "tries"), "pattern p(amount: int = 3) by card_id", LOGIN) == []


def test_conditions_given_twice() -> None:
    assert pattern_codes("seq a where a: transaction a: transaction") == ["CEP207"]


def test_a_field_that_could_not_be_read_is_reported_once() -> None:
    uses = "pattern p by card_id { seq a where a: login amount > 1 and last(login).amount > a.amount emit x = a.amount}"
    assert codes(LOGIN.replace("ok bool", "amount decimal(12,2)") + uses) == ["CEP105"]
    assert codes(LOGIN.replace("ok bool", "amount money") + uses) == ["CEP212"]
    assert set(codes(LOGIN + uses)) == {"CEP201", "CEP203"}


CHAIN = "event e0 { id0 id event_time time k string }\n" + "".join(
    f"event e{n} {{ id{n} id event_time time k string }}\n"
    f"pattern p{n} by k {{ seq a where a: e{n - 1} emit k = a.k produce e{n} }}\n"
    for n in range(1, PRODUCE_DEPTH_MAX + 2)
)


def test_what_a_pattern_produces_is_checked_and_known() -> None:
    checked = load_text(SOURCE)
    assert [d.code for d in checked.diagnostics if d.is_error] == []
    assert [checked.patterns[name].produces for name in NAMES] == ["credit", "debit", "hop", "back", None]
    derived = {e.name for e in checked.schema.event_types if e.derived}
    assert derived == {"credit", "debit", "hop", "back"}


def test_the_formatter_keeps_the_clause() -> None:
    formatted, _ = format_text(SOURCE)
    assert formatted is not None
    assert "  produce  hop\n" in formatted
    assert load_text(formatted).patterns == load_text(SOURCE).patterns


def test_a_chain_has_an_end() -> None:
    errors = [d for d in load_text(CHAIN).diagnostics if d.is_error]
    assert [d.code for d in errors] == ["CEP427"]
    assert f"p{PRODUCE_DEPTH_MAX + 1}" in errors[0].message
    assert load_text(CHAIN).by_default.keys() == load_text(CHAIN).patterns.keys()


def test_levels_are_those_of_the_longest_way_from_the_source() -> None:
    feeds = {
        "raw": (("t",), "x"),
        "both": (("t", "x"), "y"),
        "last": (("y", "t"), None),
        "alone": (("t",), None),
    }
    assert levels_of(feeds) == {"raw": 0, "both": 1, "last": 2, "alone": 0}
    circle = {"there": (("y",), "x"), "back": (("x",), "y"), "reader": (("x",), None), "alone": (("t",), None)}
    assert levels_of(circle) == {
        "there": PRODUCE_DEPTH_MAX,
        "back": PRODUCE_DEPTH_MAX,
        "reader": PRODUCE_DEPTH_MAX,
        "alone": 0,
    }


def test_the_schema() -> None:
    schema = load_text(EVENTS).schema
    (event,) = schema.event_types
    assert (event.id_field, event.time_field) == ("tx_id", "event_time")
    assert schema.columns()["status"] == Type(Kind.ENUM, symbols=("approved", "declined", "reversed"))
    assert schema.columns()["country"] == Type(Kind.STRING, nullable=True)


def test_lists() -> None:
    text = 'list a = ["KP", "IR",]\nlist b = [1, -2.50]\nlist c = [declined]\nlist d = [5 min]\nlist e = []'
    assert load_text(text).lists == {
        "a": ("KP", "IR"),
        "b": (1, Decimal("-2.50")),
        "c": ("declined",),
        "d": (300_000,),
        "e": (),
    }


def test_identity_of_event_types() -> None:
    assert codes("event t { a id b id event_time time }") == ["CEP213"]
    assert codes("event t { a id opened time }") == ["CEP213"]
    assert codes("event t { a id event_time int opened time }") == ["CEP213"]
    assert codes("event t { a id? event_time time? }") == ["CEP213", "CEP213"]
    assert codes("event t { a int }") == ["CEP213", "CEP213"]


def test_an_event_has_times_beside_its_own() -> None:
    checked = load_text("event t { opened time?  a id  event_time time  expiry time }")
    assert checked.ok
    event_type = checked.schema.event_types[0]
    assert event_type.time_field == "event_time"
    assert event_type.times == ("opened", "event_time", "expiry")


_SYMBOLS = """event t { i id  event_time time  k string  s enum("3DS", "or", other) }
event u { j id  event_time time  k string  s enum("3DS", "or", other) }
pattern p(wanted: enum("3DS", "or", other) = "3DS") by k {
  seq a
  where a: t s == wanted or "3DS" == s or s in ["3DS", other] or s == "or" or (if k == "x" then s else "3DS") != other
  emit s = other, k = a.k
  produce u
}
pattern q by k { seq a  where a: u s == other  emit s = a.s }
test "one" of p { c: 0s t s="3DS"  expect match on c at 0s { s: other } }
"""


def test_symbols_in_quotes() -> None:
    checked = load_text(_SYMBOLS)
    assert checked.diagnostics == ()
    assert checked.patterns["p"].params[0].default == 0
    assert str(checked.schema.columns()["s"]) == 'enum("3DS", or, other)'
    formatted, _ = format_text(_SYMBOLS)
    assert formatted is not None
    assert load_text(formatted).ok


def test_fields_and_symbols_once() -> None:
    assert codes("event t { a id event_time time b int b int }") == ["CEP207"]
    assert codes("event t { a id event_time time e enum(x, x) }") == ["CEP207"]
    assert codes("event t { a id event_time time e enum }") == ["CEP212"]
    assert codes("event t { a id event_time time e string(5) }") == ["CEP105"]


def test_null_may_differ_between_event_types_but_the_type_may_not() -> None:
    first = "event t { a id event_time time x decimal(2) }\n"
    assert codes(first + "event u { b id event_time time x decimal(2)? }") == []
    assert codes(first + "event u { b id event_time time x decimal(4) }") == ["CEP215"]
    assert codes(first + "event u { x id event_time time }") == ["CEP215"]
    assert codes("event t { a id event_time time s id }\nevent u { b id event_time time s string }")[-1] == "CEP215"


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (Role.LABEL, "is_fraud,isFraud,Class,label,Is Laundering,fraud_type,FraudFound_P,Betrug"),
        (Role.SENSITIVE, "gender,dob,customer_age,date_of_birth,first,job,zip,employment_status,AgeOfPolicyHolder"),
        (Role.SENSITIVE, "Geschlecht,PLZ,Alter,sexo"),
        (Role.COORDINATE, "lat,merch_long,homeLon,latitude"),
        (Role.MONEY, "amount,amt,TransactionAmt,fee,Amount Paid"),
        (Role.BALANCE, "oldbalanceOrg,new_balance"),
        (Role.OTHER, "status,channel,account_age,fraud_score,flat,longest,merchant_name,V1,step,country,alternative"),
    ],
)  # fmt: skip
def test_roles(role: Role, names: str) -> None:
    assert [name for name in names.split(",") if role_of(name) is not role] == []


HEADER = (
    "pattern p(least: int = 2 in 1..10, most: int = 5, limit: decimal = 2.00, window: duration = 5 min, "
    "gap: duration, near: float = 0.5, kind: enum(approved, declined) = declined, on_line: bool = true, "
    'land: string = "KP", fine: decimal(4) = 1) by card_id'
)


@pytest.fixture(scope="module")
def pattern() -> PatternIR:
    body = """
      seq   a{least,most}[gap] ->[window] b within window
      where a: transaction amount > limit and online == on_line and country == land
            b: transaction amount > fine and lat > near and country in [land, "IR"]
      emit  r = a.amount + limit
    """
    return checked_pattern(body, HEADER)


def messages(pattern: PatternIR, **arguments: object) -> list[str]:
    bound, diagnostics = bind(pattern, {"gap": "30 s"} | arguments)
    assert (bound is None) == bool(diagnostics)
    return [f"{d.code} {d.message}" for d in diagnostics]


def test_defaults(pattern: PatternIR) -> None:
    bound, diagnostics = bind(pattern, {"gap": "30 s"})
    assert not diagnostics
    assert bound is not None
    assert bound.params == ()
    assert "$" not in dump_pattern(bound)
    assert bound.within_ms == 300_000
    first = bound.structure.steps[0].node
    assert isinstance(first, VarNode)
    assert (first.quantifier.min_count, first.quantifier.max_count, first.quantifier.gap_ms) == (2, 5, 30_000)
    where = bound.variables[1].where
    assert where is not None
    assert "10000:decimal(4)" in dump_expr(where)


def test_the_pattern_itself_stays_open(pattern: PatternIR) -> None:
    bind(pattern, {"gap": "30 s"})
    assert isinstance(pattern.structure, SequenceNode)
    assert isinstance(pattern.within_ms, Param)


@pytest.mark.parametrize("value", ["3.50", 3.5, Decimal("3.50"), "35e-1"], ids=repr)
def test_decimals_are_exact_whatever_they_come_as(pattern: PatternIR, value: object) -> None:
    bound, _ = bind(pattern, {"gap": "1 s", "limit": value})
    assert bound is not None
    assert "350:decimal(2)" in dump_pattern(bound)


@pytest.mark.parametrize(("value", "ms"), [("10 min", 600_000), ("5m", 300_000), ("1.5 s", 1_500), ("250 ms", 250)])
def test_durations(pattern: PatternIR, value: object, ms: int) -> None:
    bound, _ = bind(pattern, {"gap": "1 s", "window": value})
    assert bound is not None
    assert bound.within_ms == ms


def test_unknown_and_missing(pattern: PatternIR) -> None:
    bound, diagnostics = bind(pattern, {"limitt": 1})
    assert bound is None
    assert [d.code for d in diagnostics] == ["CEP501", "CEP502"]
    assert diagnostics[0].help == "did you mean `limit`?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "2.005"),
        ("limit", "two"),
        ("limit", None),
        ("limit", float("nan")),
        ("limit", "1e400"),
        ("limit", "9" * 500),
        ("limit", 10**30),
        ("limit", True),
        ("least", "3"),
        ("least", 2.0),
        ("least", True),
        ("least", 2**70),
        ("window", "10"),
        ("window", 600_000),
        ("window", "10 parsecs"),
        ("window", "0.0001 s"),
        ("window", -5),
        ("window", 2**80),
        ("near", "x"),
        ("near", 10**400),
        ("near", float("inf")),
        ("near", Decimal("sNaN")),
        ("kind", "reversed"),
        ("kind", 1),
        ("on_line", 1),
        ("land", 5),
        ("land", ["KP"]),
    ],
)
def test_values_that_do_not_fit(pattern: PatternIR, name: str, value: object) -> None:
    (message,) = messages(pattern, **{name: value})
    assert message.startswith(f"CEP503 the parameter `{name}`")


def test_bounds(pattern: PatternIR) -> None:
    assert messages(pattern, least=11) == ["CEP504 the parameter `least` must be in 1 .. 10, it is 11"]
    assert messages(pattern, least=6) == ["CEP504 the most of a repetition is below its least (`least`, `most`)"]
    assert messages(pattern, window="0 s")[0] == "CEP504 the parameter `window` is 0 where the pattern needs at least 1"


def test_defaults_that_make_no_sound_pattern_are_found_by_the_check() -> None:
    assert pattern_codes("seq a{n,m} -> b within 1 h", "pattern p(n: int = 5, m: int = 2) by card_id") == ["CEP504"]
    assert pattern_codes("seq a{n,} -> b within 1 h", "pattern p(n: int = 0) by card_id") == ["CEP504"]


def test_a_pattern_without_parameters_is_itself() -> None:
    pattern = next(iter(load_text(EVENTS + "pattern p by card_id { seq a }").patterns.values()))
    assert bind(pattern, {}) == (pattern, [])


def test_a_number_that_has_no_text() -> None:
    header = "pattern p(l: list of int, n: int, t: duration) by card_id"
    pattern = checked_pattern("seq a -> b within t where a: transaction tries in l and tries > n", header)
    _, diagnostics = bind(pattern, {"l": [16**5000], "n": 16**5000, "t": 16**5000})
    assert [d.code for d in diagnostics] == ["CEP503"] * 3


@pytest.mark.parametrize(
    "value", ["9e999999999", "1e-999999999", "-1e-400", "0.001", "NaN", "1e30", f"1.{'0' * 33}1", "1_0"]
)
def test_a_decimal_that_is_too_large_or_too_fine_is_never_rounded(value: str) -> None:
    text = "pattern p(x: decimal(2) = 1.00) by card_id { seq a where a: transaction amount > x }"
    _, diagnostics = bind(load_text(EVENTS + text).patterns["p"], {"x": value})
    assert [d.code for d in diagnostics] == ["CEP503"]


def test_a_branch_that_is_compared_with_a_token_is_a_token() -> None:
    text = """
    event t { id id  event_time time  card pan  n int }
    pattern p(q: string) by card { seq a where a: t card == (if n > 1 then q else null) }
    """
    for value, expected in (("4111111111111111", ["CEP320"]), (f"pan_k1_{'a' * 32}", [])):
        _, diagnostics = bind(load_text(text).patterns["p"], {"q": value})
        assert [d.code for d in diagnostics] == expected
