"""Streams and rulebooks for the parity of all runners: the simulated day, public data, and rules drawn by a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import FIELD_BYTES_MAX, RUNS_PER_KEY_MAX
from cep.base.text import utc_text
from cep.model.rule import ControlRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from tests.runners.spark import transactions
from tests.runners.spark.live_cases import payments, rules

_EVENTS = transactions.SOURCE[: transactions.SOURCE.index("pattern")].replace("}", "  opened  time?\n}")
_RULES_COUNT = 6
_BEGIN_MS = 1_772_323_200_000
_DAY_MS = 86_400_000
_LINKS = ("->", "->", "->>", ",")
_QUANTIFIERS = ("", "", "", "+", "+ greedy", "{2}", "{1,3}", "{2,} greedy", "?")
_SKIPS = ("none", "past last", "to next", "to last a")
_HISTORIES = (
    "count(payment over 2 d) > 2",
    "amount > 1.3 * avg(payment.amount over 3 d)",
    "amount >= max(payment.amount over 5 d)",
    "last(payment over 9 d).amount < amount",
    "amount > approx_percentile(payment.amount over previous 20 d, 80)",
    "opened > max(payment.opened over 9 d)",
    "approx_distinct(payment.terminal_id over 8 d where amount > 20.00) > 2",
)


@dataclass(frozen=True)
class Stream:
    """Events as JSON lines in event-time order, and the first control records of a job over them."""

    lines: list[bytes]
    records: list[ControlRecord]


def simulated_day(seed: int) -> Stream:
    """Return the demo's payments with all rules of this repository."""
    return Stream(payments(seed), list(rules().values()))


def public(customers: int | None) -> Stream:
    """Return transactions of the fraud-detection handbook's simulator, of the first customers or of all."""
    return Stream(lines_of(customers), list(transactions.records(*transactions.BY_CUSTOMER, *transactions.BY_TERMINAL)))


def drawn(seed: int, customers: int = 30) -> Stream:
    """Return rules drawn by a seed, a change and an end of one of them midway, over public transactions."""
    random, lines = Random(seed), lines_of(customers)
    times = [orjson.loads(line)["event_time"] for line in lines]
    records: list[ControlRecord] = []
    while len(records) < _RULES_COUNT:
        rule = drawn_rule(random, f"drawn_{seed}_{len(records)}")
        if not deploy([rule]).set_aside:
            records.append(rule)
    old, over = records[:2]
    assert isinstance(old, UpsertRecord)
    changed = drawn_rule(random, old.id)
    while deploy([changed]).set_aside:
        changed = drawn_rule(random, old.id)
    update = {"version": 2, "effective_at": times[len(times) // 3], "on_update": random.choice(["drain", "restart"])}
    assert isinstance(over, UpsertRecord)
    late = over.model_copy(update={"version": 2, "effective_at": times[len(times) // 2], "severity": "high"})
    return Stream(lines, [*records, changed.model_copy(update=update), late])


def lines_of(customers: int | None) -> list[bytes]:
    """Return transactions as JSON lines in event-time order. `opened` is up to 29 days before the event, or null."""
    table = transactions.transactions() if customers is not None else transactions.everything()
    if customers is not None:
        table = table.filter(pc.less(table["customer_id"], customers))
    table = table.sort_by([("event_time", "ascending"), ("tx_id", "ascending")])
    times = table["event_time"].cast(pa.int64()).to_pylist()
    names = [name for name in transactions.COLUMNS if name != "event_time"]
    columns: list[Sequence[object]] = [table[name].to_pylist() for name in names]
    rows = zip(times, *columns, strict=True)
    texts = ((ms, {n: v if n == "amount" else str(v) for n, v in zip(names, row, strict=True)}) for ms, *row in rows)
    return [
        orjson.dumps({"event_time": utc_text(ms), "opened": ms - ms % 29 * _DAY_MS if ms % 7 else None, **fields})
        for ms, fields in texts
    ]


def drawn_rule(random: Random, name: str) -> UpsertRecord:
    """Return a rule of two or three variables, which the check may refuse."""
    variables = "abc"[: random.choice((2, 2, 3))]
    parts, where = [], []
    for place, variable in enumerate(variables):
        forbidden = place == len(variables) - 1 and random.random() < 0.2
        link = f" {random.choice(_LINKS)} " if place else ""
        quantifier = "" if forbidden else random.choice(_QUANTIFIERS)
        parts.append(f"{link}{'!' if forbidden else ''}{variable}{quantifier}")
        condition = _condition(random, variable, place, repeats=quantifier not in ("", "?"))
        where.append(f"{variable}: payment  {condition}")
    past = "spent = sum(payment.amount over 3 d), before = last(payment).amount"
    timeout = f"\n  on timeout emit  n = count(a), {past}" if random.random() < 0.3 else ""
    source = (
        f"{_EVENTS}pattern {name} by {random.choice(('customer_id', 'terminal_id', '(customer_id, terminal_id)'))} {{\n"
        f"  seq    {''.join(parts)}  within {random.choice((6, 30, 90))} h\n"
        f"  where  {chr(10).join(where)}\n"
        f"  skip   {random.choice(_SKIPS)}\n"
        f"  emit   n = count(a), total = sum(a.amount), opened = min(a.opened), {past}{timeout}\n}}\n"
    )
    return _rule(name, source, "{n} of {key}", "1 d" if random.random() < 0.3 else None)


def _rule(name: str, source: str, message: str = "{key}", suppress: str | None = None) -> UpsertRecord:
    return UpsertRecord(
        id=name, version=1, pattern=name, status="live", severity="low", owner="o", message=message, source=source,
        suppress=suppress,
    )  # fmt: skip


def _condition(random: Random, variable: str, place: int, *, repeats: bool) -> str:
    amount = f"amount {random.choice('<>')} {random.randint(1_000, 12_000) / 100:.2f}"
    chance = random.random()
    if chance < 0.3:
        return f"{amount} and {random.choice(_HISTORIES)}"
    if chance < 0.5 and place:
        return "amount > a.amount"
    if chance < 0.6:
        return f"{amount} and event_time - {'a.' if place else ''}opened < {random.randint(1, 29)} d"
    if chance < 0.7 and repeats:
        return f"{variable}.amount is null or amount > 1.1 * {variable}.amount"
    return amount


def hot() -> Stream:
    """Return a customer with more open runs than the limit; one payment completes more of them than the limit."""
    source = (
        f"{_EVENTS}pattern hot by customer_id {{\n  seq    a -> b  within 9 h\n"
        "  where  a: payment  amount < 5.00\n         b: payment  amount > 500.00\n"
        "  skip   none\n  emit   small = a.amount, large = b.amount\n}\n"
    )
    lines = []
    for number in range(RUNS_PER_KEY_MAX + 300):
        fields = {"tx_id": f"t{number}", "terminal_id": "1", "customer_id": "2" if number % 50 == 7 else "1"}
        amount = 900.0 if number % 1_150 == 1_149 else 1.0 + number % 3
        lines.append(orjson.dumps({"event_time": utc_text(_BEGIN_MS + 10_000 * number), **fields, "amount": amount}))
    return Stream(lines, [_rule("hot", source)])


def losing() -> Stream:
    """`hot`, with a loop that binds more events than a rule may keep, absurd amounts, and wrong values."""
    busy = hot()
    patterns = {
        "loop": (
            "seq    a{2,} -> b  within 9 h\n  where  a: payment  amount < 5.00\n         b: payment  amount > 500.00\n"
            "  skip   past last\n  emit   n = count(a)"
        ),
        "vast": (
            "seq    x{3}  within 9 h\n  where  x: payment  amount > 1000000000.00\n"
            "  skip   past last\n  emit   total = sum(x.amount)"
        ),
    }
    more = [
        _rule(name, f"{_EVENTS}pattern {name} by customer_id {{\n  {text}\n}}\n") for name, text in patterns.items()
    ]
    lines = list(busy.lines)
    begin = orjson.loads(lines[-1])["event_time"]
    event = {"event_time": begin, "terminal_id": "1", "customer_id": "3", "amount": 1.0}
    vast = {**event, "amount": 80_000_000_000_000_000}
    lines += [orjson.dumps({**vast, "tx_id": f"vast{n}"}) for n in range(4)]
    flaws: tuple[dict[str, object], ...] = (
        {"opened": "never"},
        {"opened": {}},
        {"terminal_id": [1]},
        {"terminal_id": "t" * (FIELD_BYTES_MAX + 1)},
    )
    lines += [orjson.dumps({**vast, "tx_id": f"vast{4 + n}", **flaw}) for n, flaw in enumerate(flaws)]
    lines.append(orjson.dumps({**vast, "tx_id": "vast8"}).replace(b'"1"', b'"\xff"'))
    lines.append(orjson.dumps({**vast, "tx_id": "without key", "customer_id": {"id": 3}}))
    lines.append(orjson.dumps({**event, "tx_id": "x" * (FIELD_BYTES_MAX + 1)}))
    lines.append(orjson.dumps({**event, "tx_id": "wrong", "amount": "much"}))
    lines.append(orjson.dumps({**event, "tx_id": "nobody", "customer_id": None}))
    nobody = ("customer_id  string\n", "customer_id  string?\n")
    all_rules = [each for each in busy.records if isinstance(each, UpsertRecord)] + more
    return Stream(lines, [each.model_copy(update={"source": each.source.replace(*nobody)}) for each in all_rules])


def tied(seed: int, *, is_declared: bool = True) -> Stream:
    """Return events ordered by microseconds and a number, many in one millisecond, with unordered ids.

    The number is the declared field, or only arrival gives the order.
    """
    random = Random(seed)
    source = """
event t {
  tx_id       id
  event_time  time
  card_id     string
  kind        enum(a, b, c)
  number      int?
  order       by number
}

pattern steps by card_id {
  seq    x -> y -> z  within 1 s
  where  x: t  kind == a
         y: t  kind == b
         z: t  kind == c and count(t over 1 s) > 3
  skip   none
  emit   n = z.number, before = last(t).number
}
"""
    source = source if is_declared else source.replace("  order       by number\n", "")
    names = [f"{random.choice('xyz')}{n}" for n in range(600)]
    random.shuffle(names)
    lines, us = [], 0
    for number, name in enumerate(names):
        us += random.choice((0, 0, 0, 1, 100, 999, 1_000))
        second, rest = divmod(us, 1_000_000)
        event = {
            "tx_id": name,
            "event_time": f"{utc_text(_BEGIN_MS + 1_000 * second)[:19]}.{rest:06d}Z",
            "card_id": random.choice("pq"),
            "kind": random.choice("abc"),
            "number": number,
        }
        lines.append(orjson.dumps(event))
    return Stream(lines, [_rule("steps", source, "{key} {n} {before}")])
