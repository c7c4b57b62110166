"""Aggregates over past events equal a window query in SQL (DuckDB), on all rows of real data sets.

A range window of SQL includes later events of the same time. The query therefore orders events by a number that is
unique within a key, and its range counts these numbers: time in ms times 1024, plus the place among the events of that
time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState, empty_state
from cep.engine.table import prepare
from cep.lang.walk import histories
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from tests.lang.common import bound_pattern

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
DAY_MS = 86_400_000
EVENTS = """
event pay { tx_id id  event_time time  key string  other string  amount decimal(2)  size float }
"""
WINDOWS = {"1 h": DAY_MS // 24, "1 d": DAY_MS, "28 d": 28 * DAY_MS, "90 d": 90 * DAY_MS}


@dataclass(frozen=True)
class Asked:
    """A history, and its SQL. `close` bounds the relative difference where rounding differs."""

    text: str
    sql: str
    close: float = 0.0


def over(window_ms: int, *, previous: bool = False, by: str = "key") -> str:
    leave_out = "exclude current row" if previous else ""
    back = f"{(window_ms - 1) * 1024}::bigint + place preceding"
    return f"over (partition by {by} order by turn range between {back} and current row {leave_out})"


def asked_of(windows: dict[str, int]) -> Iterator[Asked]:
    for name, ms in windows.items():
        yield Asked(f"count(pay over {name})", f"count(*) {over(ms)}")
        yield Asked(f"sum(pay.amount over previous {name})", f"coalesce(sum(amount) {over(ms, previous=True)}, 0)")
        yield Asked(f"avg(pay.amount over {name})", f"avg(amount) {over(ms)} / 100.0", 1e-14)
        yield Asked(f"min(pay.amount over previous {name})", f"min(amount) {over(ms, previous=True)}")
        yield Asked(f"max(pay.size over {name})", f"max(size) {over(ms)}")
        yield Asked(f"distinct(pay.other over {name})", f"count(distinct other) {over(ms)}")
    longest, ms = list(windows.items())[-1]
    yield Asked(f"sum(pay.size over {longest})", f"sum(size) {over(ms)}", 1e-9)
    yield Asked(f"stddev(pay.amount over {longest})", f"stddev_pop(amount) {over(ms)} / 100.0", 1e-6)
    yield Asked(f"median(pay.amount over {longest})", f"quantile_disc(amount, 0.5) {over(ms)} / 100.0", 1e-15)
    yield Asked(f"percentile(pay.size over previous {longest}, 95)",
                f"quantile_disc(size, 0.95) {over(ms, previous=True)}")  # fmt: skip
    yield Asked(f"sum(pay.amount over {longest} by other)", f"sum(amount) {over(ms, by='key, other')}")
    yield Asked(f"count(pay over {longest} where amount > 50)",
                f"count(*) filter (where amount > 5000) {over(ms)}")  # fmt: skip
    yield Asked(f"last(pay over previous {longest}).amount", f"last_value(amount) {over(ms, previous=True)}")
    yield Asked(f"exists(pay over previous {longest})", f"(count(*) {over(ms, previous=True)} > 0)::bigint")
    yield Asked("last(pay).amount", "lag(amount) over (partition by key order by turn)")
    yield Asked("first_seen(other)", "time_ms - min(time_ms) over (partition by key, other)")
    for unit in ("day", "month"):
        local = f"date_trunc('{unit}', make_timestamp(time_ms * 1000) at time zone 'UTC' at time zone 'Europe/Paris')"
        yield Asked(f'sum(pay.amount over {unit} in "Europe/Paris")',
                    f"sum(amount) over (partition by key, {local} order by turn)")  # fmt: skip


def run_sql(query: str, payments: pa.Table | None = None) -> pa.Table:
    import duckdb  # noqa: PLC0415 it tells of objects at the end of each process that has loaded it

    with duckdb.connect() as connection:
        if payments is not None:
            connection.register("payments", payments)
        relation = connection.sql(query)
        assert relation is not None
        return relation.to_arrow_table()


def generated() -> pa.Table:
    random = np.random.default_rng(3)
    count = 4_000
    times = 1_522_540_800_000 + np.sort(random.integers(0, 60 * DAY_MS, count)) // 60_000 * 60_000
    return pa.table(
        {
            "key": random.integers(0, 25, count).astype(str),
            "other": random.integers(0, 40, count).astype(str),
            "time_ms": times,
            "amount": random.integers(1, 20_000, count),
        }
    )


def of_file(name: str, key: str, other: str) -> pa.Table:
    query = f"""select {key}::varchar as key, coalesce({other}::varchar, '') as other, epoch_ms(event_time) as time_ms,
                round(amount * 100)::bigint as amount from '{DATA / name}' order by time_ms, tx_id"""
    return run_sql(query)


def numbered(table: pa.Table) -> pa.Table:
    """Add an id in the order of the rows, and the number that orders the events of a key."""
    ids = pa.array([f"{n:08d}" for n in range(table.num_rows)])
    table = table.append_column("id", ids).append_column("size", pc.divide(table["amount"].cast(pa.float64()), 7.0))
    place = "row_number() over (partition by key, time_ms order by id) - 1 as place"
    query = f"select *, time_ms * 1024 + place as turn from (select *, {place} from payments) order by id"
    return run_sql(query, table)


def batch_of(table: pa.Table, rows: slice = slice(None)) -> EventBatch:
    columns = {name: table[name].combine_chunks()[rows] for name in table.column_names}
    ids = columns["id"].cast(TEXT)
    fields = {name: columns[name].cast(TEXT) for name in ("key", "other")}
    fields |= {"tx_id": ids, "amount": columns["amount"], "size": columns["size"]}
    times = np.asarray(columns["time_ms"])
    return EventBatch(fields["key"], ids, np.zeros(len(times), np.int16), times, fields)


def program_of(functions: list[Asked]) -> Program:
    rules = []
    for number, one in enumerate(functions):
        condition = one.text if one.text.startswith("exists") else f"{one.text} is null"
        pattern, schema = bound_pattern(f"{EVENTS}\npattern p by key {{ seq a where a: pay {condition} }}")
        rules.append(DeployedRule(f"r{number}", 1, 1, str(number), pattern))
    return compile_rules(schema, ("key",), rules)


def values(program: Program, keyed_state: KeyedState | None, batch: EventBatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return values (floats or integers) and null flags of each rule's history, in the order of the batch."""
    prepared = prepare(program, empty_state(program) if keyed_state is None else keyed_state, batch, -TIME_MS_MAX)
    assert program.histories is not None
    numbers = {h.expr: h.number for h in program.histories.histories}
    slots_and_nulls = []
    for rule in program.rules:
        (past,) = histories(rule.deployed.pattern)
        slots, nulls = np.empty(len(batch), np.int64), np.empty(len(batch), bool)
        slots[prepared.batch_rows] = prepared.columns[numbers[past], prepared.first_row :]
        nulls[prepared.batch_rows] = prepared.nulls[numbers[past], prepared.first_row :] != 0
        slots_and_nulls.append((slots.view(np.float64) if past.type.is_float else slots, nulls))
    return slots_and_nulls


def check(table: pa.Table, windows: dict[str, int], parts: int) -> None:
    table = numbered(table)
    histories = list(asked_of(windows))
    program = program_of(histories)
    bounds = [table.num_rows * n // parts for n in range(parts + 1)]
    parts_values: list[list[tuple[np.ndarray, np.ndarray]]] = []
    keyed_state: KeyedState | None = None
    for start, end in pairwise(bounds):
        batch = batch_of(table, slice(start, end))
        parts_values.append(values(program, keyed_state, batch))
        if parts > 1:
            keyed_state = advance(program, keyed_state, batch, int(batch.time_ms[-1])).keyed_state
    for number, one in enumerate(histories):
        ours = np.concatenate([part[number][0] for part in parts_values])
        nulls = np.concatenate([part[number][1] for part in parts_values])
        expected = run_sql(f"select id, {one.sql} as value from payments order by id", table)["value"]
        missing = np.asarray(pc.is_null(expected).combine_chunks())
        assert (nulls == missing).all(), one.text
        theirs = np.asarray(expected.fill_null(0).combine_chunks().cast(pa.float64())[:])
        wrong = ~nulls & (np.abs(ours - theirs) > one.close * np.maximum(np.abs(theirs), 1.0))
        assert not wrong.any(), (one.text, np.flatnonzero(wrong)[:3], ours[wrong][:3], theirs[wrong][:3])


@pytest.mark.parametrize("parts", [1, 7])
def test_generated_payments(parts: int) -> None:
    check(generated(), {"1 h": DAY_MS // 24, "28 d": 28 * DAY_MS}, parts)


needs_data = pytest.mark.skipif(not DATA.exists(), reason="the public data sets are not beside the repository")


@pytest.mark.slow
@needs_data
def test_all_of_the_bank_accounts() -> None:
    check(of_file("berka_354_accounts_full_history.parquet", "account_id", "counterparty_account"), WINDOWS, 5)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("key", "other"), [("customer_id", "terminal_id"), ("terminal_id", "customer_id")])
def test_all_card_payments(key: str, other: str) -> None:
    check(of_file("ulb_handbook_transactions.parquet", key, other), WINDOWS, 1)
