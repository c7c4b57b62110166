"""Two honest months of a small bank, from a seed: money, changes of accounts, and logins; all customers are honest.

People get wages, pay rent and bills, draw cash, mistype, move, lose phones, buy a car and coins. Traders pay in their
takings. Every alert of the library on these events is a false alert.
Tested by: tests/testing/test_honest.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

DAYS = 60
PEOPLE = 300
_START_MS = 1_704_067_200_000
_DAY_MS = 86_400_000
_MINUTE_MS = 60_000
_ALONE = (
    (0.05, "password_reset"), (0.03, "phone_changed"), (0.02, "sim_changed"), (0.03, "card_ordered"),
    (0.01, "remote_tool_seen"),
)  # fmt: skip
_RARE_MONEY = (
    (0.06, "outgoing", "exchange", "coins", 150.0, None),
    (0.04, "outgoing", "wire", "holiday flat", 1_200.0, "ES"),
    (0.03, "incoming", "cheque", "insurer", 700.0, None),
    (0.02, "incoming", "cash", "car sold", 8_500.0, None),
)
Value = str | float | bool | int | None


@dataclass(slots=True)
class _Life:
    """The events of one person, collected."""

    name: str
    random: np.random.Generator
    rows: list[dict[str, Value]] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def moment(self, day: int, hour_from: int = 7, hour_to: int = 22) -> int:
        return _START_MS + day * _DAY_MS + int(self.random.integers(hour_from * 3_600_000, hour_to * 3_600_000))

    def money(
        self, time_ms: int, direction: str, means: str, other: str, amount: float, country: str | None = None
    ) -> None:
        self.rows.append({
            "event_type": "money", "event_time": time_ms, "account_id": self.name, "direction": direction,
            "means": means, "counterparty": other, "sum_of_money": round(amount, 2), "to_country": country,
        })  # fmt: skip

    def step(self, time_ms: int, step: str, payee: str | None = None, paid: float | None = None) -> None:
        self.rows.append({
            "event_type": "account_event", "event_time": time_ms, "user_id": self.name, "step": step, "payee": payee,
            "paid": None if paid is None else round(paid, 2),
        })  # fmt: skip

    def login(self, time_ms: int, source: str, *, ok: bool) -> None:
        self.rows.append({
            "event_type": "login", "event_time": time_ms, "source_ip": source, "user_name": self.name, "ok": ok,
        })  # fmt: skip


def _pay(life: _Life, time_ms: int, payee: str, amount: float) -> None:
    """Pay online: the bank asks for a code, sometimes twice, and the customer gives it."""
    for _ in range(1 + life.chance(0.05)):
        life.step(time_ms, "code_sent")
        time_ms += _MINUTE_MS // 2
    life.step(time_ms, "code_passed")
    life.step(time_ms + 5_000, "payment", payee, amount)
    life.money(time_ms + 6_000, "outgoing", "transfer", payee, amount)


def _wages_and_bills(life: _Life) -> None:
    wages, rent = life.random.uniform(1_800, 6_000), life.random.uniform(500, 1_500)
    for month in (0, 30):
        life.money(life.moment(month + 1), "incoming", "transfer", "employer", wages)
        life.money(life.moment(month + 2), "outgoing", "transfer", "landlord", rent)
        life.money(life.moment(month + 3), "outgoing", "transfer", "savings", 500 if life.chance(0.5) else 200)
    for day in range(DAYS):
        if life.chance(0.4):
            payee = f"{life.name} knows {life.random.integers(8)}"
            _pay(life, life.moment(day), payee, float(life.random.lognormal(3.8, 0.8)))
        if life.chance(0.15):
            life.money(life.moment(day), "outgoing", "cash", "machine", float(life.random.integers(1, 15)) * 20)


def _takings(life: _Life) -> None:
    for day in range(DAYS):
        if day % 7 < 6:
            life.money(life.moment(day, 18, 20), "incoming", "cash", "counter", float(life.random.uniform(150, 1_200)))
        if day % 7 == 4:
            for supplier in range(3):
                amount = float(life.random.uniform(300, 1_500))
                life.money(life.moment(day), "outgoing", "transfer", f"supplier {supplier}", amount)


def _logins(life: _Life) -> None:
    for day in range(DAYS):
        for place in ("home", "office"):
            time_ms = life.moment(day)
            source = "office" if place == "office" and life.chance(0.3) else f"{place} of {life.name}"
            while life.chance(0.06):
                life.login(time_ms, source, ok=False)
                time_ms += 10_000
            life.login(time_ms, source, ok=True)


def _changes(life: _Life) -> None:
    """Make the rare changes of a life. Each comes alone, except that a move or a new phone brings several."""
    time_ms = life.moment(int(life.random.integers(10, DAYS - 12)))
    if life.chance(0.08):
        life.step(time_ms, "device_added")
        _pay(life, time_ms + _MINUTE_MS, "shop", 30)
    if life.chance(0.03):
        life.step(time_ms, "address_changed")
        life.money(time_ms, "outgoing", "transfer", "mover", 900)
    if life.chance(0.3):
        life.step(time_ms, "payee_added", "new one")
        _pay(life, time_ms + _MINUTE_MS, "new one", 60)
    if life.chance(0.02):
        life.step(time_ms, "limit_raised")
        _pay(life, time_ms + _DAY_MS * 2, "car dealer", 9_000)
    for share, step in _ALONE:
        if life.chance(share):
            life.step(time_ms, step)
    for share, direction, means, other, amount, country in _RARE_MONEY:
        if life.chance(share):
            life.money(time_ms, direction, means, other, amount, country)


def honest_months(seed: int) -> pa.Table:
    """Return the events, in the order of time."""
    rows: list[dict[str, Value]] = []
    for number, random in enumerate(np.random.default_rng(seed).spawn(PEOPLE)):
        life = _Life(f"p{number}", random)
        _wages_and_bills(life)
        if number % 20 == 0:
            _takings(life)
        _logins(life)
        _changes(life)
        rows += life.rows
    rows.sort(key=lambda row: int(row["event_time"] or 0))
    ids = {"money": "money_id", "account_event": "step_id", "login": "login_id"}
    for number, row in enumerate(rows):
        row[ids[str(row["event_type"])]] = f"e{number}"
    columns = sorted({name for row in rows for name in row})
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    times = table["event_time"].cast(pa.timestamp("ms", "UTC"))
    return table.set_column(table.schema.get_field_index("event_time"), "event_time", times)
