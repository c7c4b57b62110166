"""A seed → episodes of fraud with accounts, staff and loans, to be planted among honest events.

Each function writes one episode from the description of its typology in the rules and manuals that `patterns/` names as
sources. Amounts, gaps and counts are drawn around typical values of such a case, with a wide spread. They do not know
the thresholds of the patterns, and many of the episodes lie below them.
Tested by: tests/bench/test_planted.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
Row = dict[str, str | float | bool | int | None]


@dataclass(slots=True)
class Episode:
    """The events of one fraud, collected. `others` are keys of honest people, including `who`.

    The first `honest` rows come before the fraud. No row may come before `start`.
    """

    random: np.random.Generator
    start: int
    at: int
    who: str
    others: list[str]
    rows: list[Row] = field(default_factory=list)
    honest: int = 0

    def about(self, median: float, spread: float = 1.0) -> float:
        """Draw a size: with a spread of 1, half of the sizes lie within a factor of about 2 around the median."""
        return float(round(median * np.exp(spread * self.random.normal()), 2))

    def wait(self, median_ms: float, spread: float = 1.0) -> None:
        """Let time pass."""
        self.at += max(SECOND, int(self.about(median_ms, spread)))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def some(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    def one_of(self, names: list[str]) -> str:
        return names[int(self.random.integers(len(names)))]

    def add(self, event_type: str, **fields: str | float | bool | None) -> None:
        """Add an event with the present time."""
        self.rows.append({"event_type": event_type, "event_time": self.at, **fields})


Plant = Callable[[Episode], None]

# ------------------------------------------------------------------------------------------------------ take-over


def _step(of: Episode, step: str, payee: str | None = None, paid: float | None = None) -> None:
    of.add("account_event", user_id=of.who, step=step, payee=payee, paid=paid)


def _pay(of: Episode, payee: str, paid: float) -> None:
    """Pay with the code that the thief got, or that the victim gives on the phone."""
    _step(of, "code_sent")
    of.wait(25 * SECOND, 0.5)
    _step(of, "code_passed")
    of.wait(10 * SECOND, 0.5)
    _step(of, "payment", payee, paid)


def contact_changed(of: Episode) -> None:
    """The number or the address for warnings is changed, then money leaves."""
    _step(of, of.one_of(["phone_changed", "email_changed"]))
    for _ in range(of.some(1, 3)):
        of.wait(6 * HOUR, 1.5)
        _pay(of, "mule", of.about(1_200))


def sim_swapped(of: Episode) -> None:
    """The number moves to another card, which receives the codes for the thief."""
    _step(of, "sim_changed")
    of.wait(8 * HOUR, 1.5)
    if of.chance(0.6):
        _step(of, "password_reset")
    for _ in range(of.some(1, 4)):
        of.wait(20 * MINUTE, 1.2)
        _pay(of, "mule", of.about(900))


def taken_over(of: Episode) -> None:
    """A new password, a new device, a new payee, and the money leaves; one step in six is missing from the events."""
    for step in ("password_reset", "device_added", "payee_added"):
        if of.chance(0.84):
            _step(of, step, "mule" if step == "payee_added" else None)
        of.wait(20 * MINUTE, 1.5)
    for _ in range(of.some(1, 3)):
        _pay(of, "mule", of.about(1_100))
        of.wait(15 * MINUTE)


def remote_helper(of: Episode) -> None:
    """A helper connects with a tool for remote control."""
    _step(of, "remote_tool_seen")
    of.wait(35 * MINUTE, 0.9)
    _pay(of, "helper", of.about(1_800))


def first_to_payee(of: Episode) -> None:
    """A new payee gets a large sum."""
    _step(of, "payee_added", "mule")
    of.wait(2 * HOUR, 1.5)
    _pay(of, "mule", of.about(700))


def without_code(of: Episode) -> None:
    """A code is sent and never used, and money leaves by another way."""
    _step(of, "code_sent")
    of.wait(10 * MINUTE)
    _step(of, "payment", "mule", of.about(300))


def worn_out(of: Episode) -> None:
    """Requests come until the customer grants one."""
    for _ in range(of.some(2, 12)):
        _step(of, "code_sent")
        of.wait(50 * SECOND, 0.7)
    _step(of, "code_passed")
    of.wait(40 * SECOND, 0.7)
    _step(of, "payment", "mule", of.about(600))


def talked_into(of: Episode) -> None:
    """A deceiver is paid again and again, mostly more each time."""
    _step(of, "payee_added", "adviser")
    paid = of.about(600)
    for _ in range(of.some(1, 6)):
        of.wait(12 * HOUR, 1.2)
        _pay(of, "adviser", paid)
        paid = round(paid * float(of.random.uniform(0.8, 2.0)), 2)


def limit_used(of: Episode) -> None:
    """The limit is raised and used."""
    _step(of, "limit_raised")
    of.wait(5 * HOUR, 1.5)
    _pay(of, "mule", of.about(3_500, 0.8))


def card_diverted(of: Episode) -> None:
    """A card is ordered to a foreign address, where no warning reaches the customer."""
    steps = ["address_changed"]
    if of.chance(0.7):
        steps.insert(of.some(0, 1), of.one_of(["phone_changed", "email_changed"]))
    for step in steps:
        _step(of, step)
        of.wait(20 * HOUR)
    of.wait(3 * DAY, 0.9)
    _step(of, "card_ordered")


# ------------------------------------------------------------------------------------------------------- insiders


def _act(of: Episode, customer: str, act: str, case: str | None = None, paid: float | None = None) -> None:
    of.add("staff_event", employee_id=of.who, customer_id=customer, act=act, case_id=case, paid=paid)


def data_collected(of: Episode) -> None:
    """An employee looks at one customer after the other to sell the data; some look-ups name a false case."""
    pace = of.about(70 * SECOND, 0.6)
    for number in range(max(5, int(of.about(60, 0.8)))):
        _act(of, f"c{of.some(0, 3_000)}", "viewed", f"made up {number}" if of.chance(0.15) else None)
        of.wait(pace, 0.5)


def paid_by_staff(of: Episode) -> None:
    """An employee changes the customer's contact and pays out; three in ten leave the payment to a colleague."""
    customer = f"c{of.some(0, 3_000)}"
    _act(of, customer, "viewed")
    of.wait(3 * MINUTE)
    _act(of, customer, of.one_of(["contact_changed", "password_reset"]), "made up")
    of.wait(DAY, 1.2)
    if of.chance(0.3):
        of.who = of.one_of(of.others)
    _act(of, customer, "paid_out", "made up", of.about(1_200))


def favoured(of: Episode) -> None:
    """A friend gets limits and waivers."""
    customer = f"c{of.some(0, 3_000)}"
    for _ in range(of.some(2, 6)):
        _act(of, customer, of.one_of(["limit_changed", "waived"]), None if of.chance(0.5) else "made up")
        of.wait(5 * DAY, 0.9)


# -------------------------------------------------------------------------------------------------------- lending


def _loan(of: Episode, step: str, lender: str, credit: float, device: str | None = None) -> None:
    of.add("loan_event", customer_id=of.who, lender=lender, device_id=device, loan_step=step, credit=credit)


def bust_out(of: Episode) -> None:
    """Months of good payments, then a worthless payment frees the whole limit, which is used up."""
    lender, usual = f"lender {of.some(0, 5)}", of.about(300, 0.5)
    months = min(of.some(2, 12), (of.at - of.start) // (30 * DAY))
    of.at -= months * 30 * DAY
    _loan(of, "drawn", lender, usual * 12)
    for _ in range(months):
        of.at += 30 * DAY
        _loan(of, "repaid", lender, usual)
    of.honest = len(of.rows)
    of.wait(5 * DAY)
    bad = of.about(3_500, 0.8)
    _loan(of, "repaid", lender, bad)
    for _ in range(draws := of.some(1, 3)):
        of.wait(DAY)
        _loan(of, "drawn", lender, round(bad * float(of.random.uniform(0.6, 1.1)) / draws, 2))
    of.wait(4 * DAY, 0.7)
    _loan(of, "returned", lender, bad)


def stacked(of: Episode) -> None:
    """The borrower asks one lender after the other, before the lenders see each other's loans."""
    asked = of.about(1_500)
    lenders = of.some(2, 10)
    for number in range(lenders):
        _loan(of, "applied", f"lender {number}", of.about(asked, 0.4), f"phone of {of.who}")
        of.wait(5 * DAY / lenders)
    for number in range(lenders):
        if of.chance(0.6):
            _loan(of, "drawn", f"lender {number}", asked)


def made_up(of: Episode) -> None:
    """Made-up customers apply from one device."""
    device = f"ring {of.at}"
    for _ in range(of.some(2, 8)):
        of.who = f"made up {of.some(0, 10**9)}"
        _loan(of, "applied", f"lender {of.some(0, 5)}", of.about(2_000), device)
        of.wait(14 * HOUR)


def never_paid(of: Episode) -> None:
    """A made-up person draws a loan; one in five pays a little once, to be left alone for longer."""
    of.who = f"made up {of.some(0, 10**9)}"
    drawn, lender = of.about(2_000), f"lender {of.some(0, 5)}"
    _loan(of, "applied", lender, drawn, f"phone {of.some(0, 10**9)}")
    of.wait(2 * DAY)
    _loan(of, "drawn", lender, drawn)
    if of.chance(0.2):
        of.wait(28 * DAY, 0.1)
        _loan(of, "repaid", lender, round(drawn / 24, 2))


TAKE_OVER: Mapping[str, Plant] = {
    each.__name__: each
    for each in (
        contact_changed, sim_swapped, taken_over, remote_helper, first_to_payee, without_code, worn_out, talked_into,
        limit_used, card_diverted,
    )
}  # fmt: skip
INSIDERS: Mapping[str, Plant] = {each.__name__: each for each in (data_collected, paid_by_staff, favoured)}
LENDING: Mapping[str, Plant] = {each.__name__: each for each in (bust_out, stacked, made_up, never_paid)}
