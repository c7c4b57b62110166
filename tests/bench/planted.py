"""A seed → sets of labelled events: the honest months of a bank and of the firms around it, with planted frauds.

A set has one event type: `takeover`, `insiders`, `lending`, `money`, `wallets`, `sessions`, `guesses`. Several banks
make one set; loans cover a year, as a borrower's good months come first. Frauds begin at any time, so each kind is in
each part of the time. Events of a fraud that would come after the last honest one are left out. A fraud is one label,
an episode, however many events it has.
Tested by: tests/bench/test_planted.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.bench.episodes import DAY, INSIDERS, LENDING, TAKE_OVER, Episode, Plant, Row
from tests.bench.episodes_money import LOGINS, MONEY, SESSIONS, WALLETS
from tests.testing.honest import honest_firms, honest_months

BANKS = 4
_COHORTS = 3  # of borrowers, for each bank, a month apart
_MARGIN_DAYS = 4  # no fraud begins earlier, or so late that its events leave the history


@dataclass(frozen=True, slots=True)
class Field:
    """A field of fraud: its event type, its id and key columns, its kinds of episodes, and how many of each."""

    event_type: str
    id: str
    key: str
    kinds: Mapping[str, Plant]
    of_each: int
    firms: bool


FIELDS: Mapping[str, Field] = {
    "takeover": Field("account_event", "step_id", "user_id", TAKE_OVER, 30, False),
    "insiders": Field("staff_event", "staff_event_id", "employee_id", INSIDERS, 30, True),
    "lending": Field("loan_event", "loan_event_id", "customer_id", LENDING, 60, True),
    "money": Field("money", "money_id", "account_id", MONEY, 30, False),
    "wallets": Field("wallet_event", "wallet_event_id", "wallet_id", WALLETS, 40, True),
    "sessions": Field("session", "session_id", "user_id", SESSIONS, 30, True),
    "guesses": Field("login", "login_id", "user_name", LOGINS, 30, False),
}


def planted(name: str, seed: int, banks: int = BANKS) -> tuple[pa.Table, pa.Table]:
    """Return (events by time, labels) of a set. The labels have a column `spell`, the number of the fraud."""
    field = FIELDS[name]
    honest = _honest(field, seed, banks)
    times = honest["event_time"].cast(pa.int64())
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    people = pc.unique(honest[field.key]).drop_null().sort().to_pylist()
    draw = np.random.default_rng([seed, *name.encode()])
    rows, labels = list[Row](), list[Row]()
    for number in range(field.of_each * len(field.kinds)):
        kind = [*field.kinds][number % len(field.kinds)]
        visible, honest_count = list[Row](), 0
        while len(visible) <= honest_count:  # draw again if the fraud shows no event before the history ends
            start_ms = int(draw.integers(first + _MARGIN_DAYS * DAY, last - _MARGIN_DAYS * DAY))
            episode = Episode(draw, first, start_ms, people[int(draw.integers(len(people)))], people)
            field.kinds[kind](episode)
            visible = [row for row in episode.rows if int(row["event_time"] or 0) <= last]
            honest_count = episode.honest
        for place, row in enumerate(visible):
            event_id = f"planted-{number}-{place}"
            rows.append(row | {field.id: event_id})
            if place >= honest_count:
                labels.append({"event_id": event_id, "kind": kind, "episode": str(number)})
    table = _table(rows, honest.schema)
    events = pa.concat_tables([honest, table]).sort_by([("event_time", "ascending"), (field.id, "ascending")])
    marked = pa.Table.from_pylist(labels)
    return events, pa.table({
        "event_id": marked["event_id"], "label": pa.repeat(True, marked.num_rows), "kind": marked["kind"],
        "episode": marked["episode"], "reported_at": pa.repeat(pa.scalar(0, pa.int64()), marked.num_rows),
        "spell": marked["episode"],
    })  # fmt: skip


def _honest(field: Field, seed: int, banks: int) -> pa.Table:
    """Return the honest events of several banks, each with its own people."""
    year = field.event_type == "loan_event"
    tables = []
    for bank in range(banks * _COHORTS if year else banks):
        of_bank = 1_000 * seed + bank
        table = honest_firms(of_bank, (field.event_type,)) if field.firms else honest_months(of_bank)
        table = table.filter(pc.equal(table["event_type"], field.event_type))
        columns = {"event_type": table["event_type"], "event_time": table["event_time"]}
        if year:
            columns["event_time"] = pc.add(table["event_time"], pa.scalar(30 * DAY * bank, pa.duration("ms")))
        for name in table.column_names:
            column = table[name]
            if name not in columns and column.null_count < len(column):
                columns[name] = _named(column, bank) if name in {field.id, field.key, "device_id"} else column
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _named(column: pa.ChunkedArray, bank: int) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(column.cast(pa.string()), pa.scalar(f"b{bank}"), "-")


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table of this schema. Raises: AssertionError if a row has a field that no honest event has."""
    assert {name for row in rows for name in row} <= {*schema.names}
    times = pa.array([row["event_time"] for row in rows], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return pa.table(
        {
            each.name: times if each.name == "event_time" else pa.array([r.get(each.name) for r in rows], each.type)
            for each in schema
        }
    )
