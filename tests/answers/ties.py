"""Ties, duplicates, the past at the start of a history, and the absences that are certain at its end."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa

import cep
from cep.api.alerts import Alerts
from cep.api.events import RejectedRecordsWarning
from tests.answers import Row

_EVENT = "event t { tx_id id  event_time time  card_id string  device_id string }\n"
START = pd.Timestamp("2026-03-01T10:00:00Z")


def frame(**columns: Sequence[Any]) -> pd.DataFrame:
    """Return events a second apart; `columns` replace the columns that each event of one card has by default."""
    count = len(next(iter(columns.values())))
    rows: Mapping[str, Sequence[Any]] = {
        "tx_id": [f"t{row}" for row in range(count)],
        "event_time": [START + pd.Timedelta(seconds=row) for row in range(count)],
        "card_id": ["c"] * count,
        "device_id": ["d"] * count,
        **columns,
    }
    return pd.DataFrame(rows)


def past_is_from(condition: str) -> list[str | None]:
    """Return for each alert since when its past is complete."""
    rules = cep.parse(f"{_EVENT}pattern p by card_id {{ seq a where a: t {condition} }}")
    alerts = rules.match(frame(device_id=["d", "e"])).table
    return [None if ms is None else ms.isoformat() for ms in alerts["history_from"].to_pylist()]


_PAIR = "pattern p by card_id { seq a{3} within 1 h where a: t }"
_TWO_TYPES = """
event login { login_id id  event_time time  card_id string }
event t { tx_id id  event_time time  card_id string  device_id string }
pattern p by card_id { seq a -> b within 1 h where a: login  b: t }
"""
_SAME_TIME = [START] * 3


def matched(text: str, rows: pd.DataFrame) -> Alerts:
    """Match events of which some may be set aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RejectedRecordsWarning)
        return cep.parse(text).match(rows)


def repeated(**columns: Sequence[Any]) -> tuple[int, int, int]:
    """Return the alerts of three events of a card, and how many events were repeated, and set aside."""
    alerts = matched(_EVENT + _PAIR, frame(event_time=_SAME_TIME, **columns))
    return alerts.table.num_rows, alerts.counters["duplicates"], alerts.counters["reused_ids"]


def decoy(card_id: str) -> tuple[int, int]:
    """Send an event with the id of a card's first event before it. Return the alerts of the card, and events aside."""
    rows = frame(tx_id=["1", "1", "2", "3"], card_id=[card_id, "c", "c", "c"], device_id=["x", "d", "d", "d"])
    rows["event_time"] = START
    alerts = matched(_EVENT + _PAIR, rows)
    return sum(key == "c" for key in alerts.table["key"].to_pylist()), alerts.counters["reused_ids"]


def two_types() -> tuple[int, int]:
    """Return the alerts of a login 17 and a payment 17 of one card, and the repeated events."""
    rows = [
        {"event_type": "login", "login_id": "17", "event_time": START.isoformat(), "card_id": "c"},
        {"event_type": "t", "tx_id": "17", "event_time": START.isoformat(), "card_id": "c", "device_id": "d"},
    ]
    alerts = matched(_TWO_TYPES, pd.DataFrame(rows))
    return alerts.table.num_rows, alerts.counters["duplicates"] + alerts.counters["reused_ids"]


_STEPS = """
event t {{ tx_id id  event_time time  card_id string  kind string  number int  {order} }}
pattern p by card_id {{ seq d{{3}} -> hit within 1 h where d: t kind == "d"  hit: t kind == "h" skip past last }}
"""


def found_share(frauds_count: int, order: str) -> float:
    """Plant frauds of three declines and a hit in one second, with random ids. Return the share that gives alerts.

    `order` is the clause of the event type. The declared field is against arrival.
    """
    random = Random("row 7")
    rows = {
        "tx_id": [f"{random.getrandbits(64):016x}" for _ in range(4 * frauds_count)],
        "event_time": [START] * (4 * frauds_count),
        "card_id": [f"c{row // 4}" for row in range(4 * frauds_count)],
        "kind": (["h", "d", "d", "d"] if order else ["d", "d", "d", "h"]) * frauds_count,
        "number": range(4 * frauds_count, 0, -1),
    }
    return float(matched(_STEPS.format(order=order), pd.DataFrame(rows)).table.num_rows / frauds_count)


def same_answer() -> tuple[int, bool]:
    """Return the alerts of a fraud in one second whose ids are against arrival, and the answer of `why_not`."""
    rows = pd.DataFrame({
        "tx_id": list("4321"), "event_time": [START] * 4, "card_id": ["c"] * 4, "kind": list("dddh"), "number": [0] * 4,
    })  # fmt: skip
    rules = cep.parse(_STEPS.format(order=""))
    return rules.match(rows).table.num_rows, rules.why_not("p", "c", rows).is_alert


FROM_START = ["2026-03-01T10:00:00+00:00"] * 2

ROWS = [
    Row("G2", "three events", (1, 0, 0), repeated),
    Row("G2", "one event three times", (0, 2, 0), partial(repeated, tx_id=["1", "1", "1"])),
    Row("G2", "one id with two contents", (0, 1, 1),
        partial(repeated, tx_id=["1", "1", "1"], device_id=["d", "e", "d"])),
    Row("trust 7", "frauds in one second, random ids, a declared order", 1.0,
        partial(found_share, 2_000, "order by number")),
    Row("trust 7", "frauds in one second, random ids, arrival", 1.0, partial(found_share, 2_000, "")),
    Row("trust 7", "ids against arrival: alerts, and the answer of `why_not`", (1, True), same_answer),
    Row("trust 18", "a decoy with the id of another card's event", (1, 0), partial(decoy, "other")),
    Row("trust 18", "a decoy with the id of an event of the card", (1, 1), partial(decoy, "c")),
    Row("G6", "a login and a payment with one id", (1, 0), two_types),
    *(Row("G4", f"`{text}` at the start of a history", FROM_START, partial(past_is_from, text))
      for text in ("not exists(t over previous 1 d by device_id)", "first_seen(device_id) < 1 d")),
    Row("G4", "a condition without a past", [None, None], partial(past_is_from, 'device_id != "x"')),
]  # fmt: skip


RULES = """
event n { i id  event_time time  h string  k enum(created, recovered) }
pattern p by h { seq c -> !r within 10 min  where c: n k == created  r: n k == recovered }
"""
CREATED = {"i": "1", "event_time": "2026-03-27T05:17:04Z", "h": "h1", "k": "created"}
RECOVERED = {"i": "3", "event_time": "2026-03-27T05:23:05Z", "h": "h1", "k": "recovered"}
OTHER_KEY = {"i": "4", "event_time": "2026-03-27T05:27:04Z", "h": "h2", "k": "recovered"}
IN_2199 = {**OTHER_KEY, "event_time": "2199-01-01T00:00:00Z"}


def marks(*rows: dict[str, str], until: str = "", to_the_end: bool = False) -> list[bool]:
    """Return for each alert whether it is unconfirmed."""
    period: dict[str, Any] = {"until": until} if until else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        alerts = cep.parse(RULES).match(pa.Table.from_pylist(list(rows)), to_the_end=to_the_end, **period)
    unconfirmed: list[bool] = alerts.table["unconfirmed"].to_pylist()
    return unconfirmed


ROWS += [
    Row(
        "A", "until, before the event that refutes", [], lambda: marks(CREATED, RECOVERED, until="2026-03-27T05:20:00Z")
    ),
    Row("A", "until, at the deadline", [False], lambda: marks(CREATED, until="2026-03-27T05:27:04Z")),
    Row("A", "an open absence at the last event", [], lambda: marks(CREATED)),
    Row("A", "another key is past the deadline", [False], lambda: marks(CREATED, OTHER_KEY)),
    Row("A", "an event of 2199 closes nothing", [], lambda: marks(CREATED, IN_2199)),
    Row(
        "A", "until 2199 closes nothing beyond the clock", [False], lambda: marks(CREATED, until="2199-01-01T00:00:00Z")
    ),
    Row("A", "to the end", [True], lambda: marks(CREATED, to_the_end=True)),
    Row("A", "to the end, refuted", [], lambda: marks(CREATED, RECOVERED, to_the_end=True)),
]
