"""Two honest months of a small bank and around it, from a seed; all customers are honest."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

# Two honest months of a small bank, from a seed: money, changes of accounts, and logins; all customers are honest.
#
# People get wages, pay rent and bills, draw cash, mistype, move, lose phones, buy a car and coins. Traders pay in
# their takings. Every alert of the library on these events is a false alert.

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


# Two honest months around a small bank, from a seed: sessions, staff, loans, wallets and merchants; all are honest.
#
# Families share a tablet, people fly, buy telephones and compare offers of credit. Staff work on cases, and now and
# then without one. Some are late with a payment, or have one returned. Coins go to an address in use, now and then to
# a new one. Shops open, move to another bank, and have good weeks. Every alert of the library on these events is a
# false alert.


_HOUR_MS = 3_600_000
_HOME, _FAR = (52.5, 13.4), ((40.7, -74.0), (25.2, 55.3), (41.4, 2.2))  # km away: 6 400, 4 600, 1 500
_FLIGHT_H = 9
Row = dict[str, str | float | int | None]
Draw = np.random.Generator


def _at(draw: Draw, day: int, hour_from: float = 7.0, hour_to: float = 22.0) -> int:
    return _START_MS + day * _DAY_MS + int(draw.uniform(hour_from, hour_to) * _HOUR_MS)


def _sessions(draw: Draw, number: int) -> list[Row]:
    """A person with a telephone and a laptop or a family's tablet. Few of them fly or buy a new telephone."""
    user, rows = f"p{number}", list[Row]()
    devices = [f"phone of {user}", f"tablet of {number // 4}" if draw.random() < 0.4 else f"laptop of {user}"]
    away = int(draw.integers(5, DAYS - 8)) if draw.random() < 0.03 else None
    new_one = int(draw.integers(3, DAYS)) if draw.random() < 0.1 else None
    place, abroad = _HOME, _FAR[int(draw.integers(len(_FAR)))]
    for day in range(DAYS):
        if day == new_one:
            devices = [f"new phone of {user}", f"new laptop of {user}"] if draw.random() < 0.3 else devices
            devices[0] = f"new phone of {user}"
        if away is not None and day in (away, away + 5):
            # The last session before the flight is on the telephone, the first one after it on the laptop.
            other = abroad if place == _HOME else _HOME
            for hours, where, device in ((8, place, devices[0]), (9 + _FLIGHT_H, other, devices[1])):
                rows.append(_session(user, _START_MS + day * _DAY_MS + hours * _HOUR_MS, device, where))
            place = other
        elif draw.random() < 0.6:
            shown_place = None if draw.random() < 0.1 else place
            rows.append(_session(user, _at(draw, day), devices[int(draw.random() < 0.3)], shown_place))
    return rows


def _session(user: str, time_ms: int, device: str, place: tuple[float, float] | None) -> Row:
    lat, lon = place or (None, None)
    session: Row = {"event_type": "session", "event_time": time_ms, "user_id": user, "device_id": device}
    return {**session, "lat": lat, "lon": lon}


def _staff(draw: Draw, number: int) -> list[Row]:
    """An employee: calls with a case, sometimes a look without one; each tenth checks others' work once a week."""
    employee, rows = f"s{number}", list[Row]()

    def act(time_ms: int, customer: int, action: str, case: str | None, paid: float | None = None) -> None:
        rows.append({
            "event_type": "staff_event", "event_time": time_ms, "employee_id": employee, "customer_id": f"p{customer}",
            "act": action, "case_id": case, "paid": paid,
        })  # fmt: skip

    for day in (day for day in range(DAYS) if day % 7 < 5):
        for call in range(int(draw.integers(4, 12))):
            time_ms, customer, case = _at(draw, day, 8, 17), int(draw.integers(3_000)), f"{employee}-{day}-{call}"
            act(time_ms, customer, "viewed", case if draw.random() < 0.9 else None)
            then = draw.random()
            if then < 0.05:
                act(time_ms + 120_000, customer, "contact_changed" if then < 0.03 else "password_reset", case)
            elif then < 0.07:
                act(time_ms + 120_000, customer, "limit_changed" if then < 0.06 else "waived", case)
            elif then < 0.1:
                act(time_ms + 180_000, customer, "paid_out", case, round(float(draw.uniform(5, 2_000)), 2))
        if number % 10 == 0 and day % 7 == 4:
            for look in range(20):
                act(
                    _START_MS + day * _DAY_MS + 10 * _HOUR_MS + look * 150_000,
                    int(draw.integers(3_000)),
                    "viewed",
                    None,
                )
    return rows


def _loans(draw: Draw, number: int) -> list[Row]:
    """A borrower: asks one lender or compares three, draws, and pays back each month, some a few days late."""
    customer, rows = f"p{number}", list[Row]()
    device = f"tablet of {number // 2}" if draw.random() < 0.3 else f"phone of {customer}"

    def step(time_ms: int, step_name: str, lender: int, credit: float) -> None:
        rows.append({
            "event_type": "loan_event", "event_time": time_ms, "customer_id": customer, "lender": f"lender {lender}",
            "device_id": device if step_name == "applied" else None, "loan_step": step_name, "credit": round(credit, 2),
        })  # fmt: skip

    begin, credit, lender = int(draw.integers(0, 12)), float(draw.uniform(500, 12_000)), int(draw.integers(6))
    for offer in range(1 + int(draw.integers(3)) * int(draw.random() < 0.5)):
        step(_at(draw, begin, 9 + offer, 10 + offer), "applied", (lender + offer) % 6, credit)
    step(_at(draw, begin + 2), "drawn", lender, credit)
    for month in (1, 2):
        time_ms = _at(draw, begin + 2 + month * 22 + (int(draw.integers(1, 9)) if draw.random() < 0.1 else 0))
        step(time_ms, "repaid", lender, credit / 24)
        if draw.random() < 0.02:
            step(time_ms + 3 * _DAY_MS, "returned", lender, credit / 24)
            step(time_ms + 5 * _DAY_MS, "repaid", lender, credit / 24)
    if draw.random() < 0.2:
        step(_at(draw, begin + 10), "drawn", lender, credit / 4)
    return rows


def _wallets(draw: Draw, number: int) -> list[Row]:
    """A wallet: buys, sells, gets interest in cents, and moves coins out, most of them to its own chest."""
    wallet, rows = f"w{number}", list[Row]()
    chest = f"chest of {wallet}"

    def move(time_ms: int, movement: str, worth: float, address: str | None = None) -> None:
        rows.append({
            "event_type": "wallet_event", "event_time": time_ms, "wallet_id": wallet, "move": movement,
            "address": address, "worth": round(worth, 2),
        })  # fmt: skip

    for day in range(DAYS):
        if day % 7 == number % 7:
            move(_at(draw, day, 1, 2), "deposited", float(draw.uniform(0.05, 2)), "interest")
        if draw.random() < 0.1:
            time_ms, worth = _at(draw, day), float(draw.lognormal(5.5, 1.3))
            move(time_ms, "bought", worth)
            if draw.random() < 0.3:  # a small sum first, and the whole hours later
                for hours, share in ((1, 0.01), (3, 0.95)):
                    move(time_ms + hours * _HOUR_MS, "withdrawn", worth * share, chest)
        if draw.random() < 0.05:
            move(_at(draw, day), "sold", float(draw.lognormal(5, 1)))
        if draw.random() < 0.01:
            move(_at(draw, day), "withdrawn", float(draw.uniform(50, 900)), f"friend {draw.integers(10_000)}")
    return rows


def _merchants(draw: Draw, number: int) -> list[Row]:
    """A shop: sales every day, more at weekends and in its good week; some shops are new, some move to another bank."""
    merchant, rows = f"m{number}", list[Row]()

    def happens(day: int, event: str) -> None:
        rows.append({
            "event_type": "merchant_event", "event_time": _at(draw, day, 8, 9), "merchant_id": merchant,
            "happening": event,
        })  # fmt: skip

    opens = int(draw.integers(1, DAYS - 5)) if draw.random() < 0.2 else 0
    ticket, sales = float(draw.lognormal(3.2, 0.5)), float(draw.uniform(2, 12))
    if opens:
        happens(opens, "activated")
    if draw.random() < 0.1:
        happens(int(draw.integers(opens + 1, DAYS)), "bank_account_changed")
    good_week = int(draw.integers(0, 9))
    for day in range(opens, DAYS):
        busy = (1.6 if day % 7 > 4 else 1.0) * (1.8 if day // 7 == good_week else 1.0)
        for _ in range(int(draw.poisson(sales * busy))):
            rows.append({
                "event_type": "transaction", "event_time": _at(draw, day, 9, 20), "merchant_id": merchant,
                "card_id": f"k{draw.integers(4_000)}", "account_id": "a", "status": "approved", "channel": "pos",
                "amount": round(float(draw.gamma(2, ticket / 2)) + 1, 2), "country": "DE",
            })  # fmt: skip
    return rows


_KINDS: tuple[tuple[str, Callable[[Draw, int], list[Row]], int], ...] = (
    ("session", _sessions, 150), ("staff_event", _staff, 20), ("loan_event", _loans, 500),
    ("wallet_event", _wallets, 200), ("transaction", _merchants, 30),
)  # fmt: skip
_IDS = {
    "session": "session_id", "staff_event": "staff_event_id", "loan_event": "loan_event_id",
    "wallet_event": "wallet_event_id", "merchant_event": "merchant_event_id", "transaction": "tx_id",
}  # fmt: skip


def honest_firms(seed: int, event_types: Container[str] | None = None) -> pa.Table:
    """Return the events in the order of time: all, or some types. The merchants also make `transaction` events."""
    rows: list[Row] = []
    for (name, kind, count), of_kind in zip(_KINDS, np.random.default_rng(seed).spawn(len(_KINDS)), strict=True):
        for number, draw in enumerate(of_kind.spawn(count if event_types is None or name in event_types else 0)):
            rows += kind(draw, number)
    rows.sort(key=lambda row: int(row["event_time"] or 0))
    for number, row in enumerate(rows):
        row[_IDS[str(row["event_type"])]] = f"e{number}"
    columns = sorted({name for row in rows for name in row})
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    times = table["event_time"].cast(pa.timestamp("ms", "UTC"))
    return table.set_column(table.schema.get_field_index("event_time"), "event_time", times)
