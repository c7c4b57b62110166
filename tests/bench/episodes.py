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


def _step(episode: Episode, step: str, payee: str | None = None, paid: float | None = None) -> None:
    episode.add("account_event", user_id=episode.who, step=step, payee=payee, paid=paid)


def _pay(episode: Episode, payee: str, paid: float) -> None:
    """Pay with the code that the thief got, or that the victim gives on the phone."""
    _step(episode, "code_sent")
    episode.wait(25 * SECOND, 0.5)
    _step(episode, "code_passed")
    episode.wait(10 * SECOND, 0.5)
    _step(episode, "payment", payee, paid)


def contact_changed(episode: Episode) -> None:
    """The number or the address for warnings is changed, then money leaves."""
    _step(episode, episode.one_of(["phone_changed", "email_changed"]))
    for _ in range(episode.some(1, 3)):
        episode.wait(6 * HOUR, 1.5)
        _pay(episode, "mule", episode.about(1_200))


def sim_swapped(episode: Episode) -> None:
    """The number moves to another card, which receives the codes for the thief."""
    _step(episode, "sim_changed")
    episode.wait(8 * HOUR, 1.5)
    if episode.chance(0.6):
        _step(episode, "password_reset")
    for _ in range(episode.some(1, 4)):
        episode.wait(20 * MINUTE, 1.2)
        _pay(episode, "mule", episode.about(900))


def taken_over(episode: Episode) -> None:
    """A new password, a new device, a new payee, and the money leaves; one step in six is missing from the events."""
    for step in ("password_reset", "device_added", "payee_added"):
        if episode.chance(0.84):
            _step(episode, step, "mule" if step == "payee_added" else None)
        episode.wait(20 * MINUTE, 1.5)
    for _ in range(episode.some(1, 3)):
        _pay(episode, "mule", episode.about(1_100))
        episode.wait(15 * MINUTE)


def remote_helper(episode: Episode) -> None:
    """A helper connects with a tool for remote control."""
    _step(episode, "remote_tool_seen")
    episode.wait(35 * MINUTE, 0.9)
    _pay(episode, "helper", episode.about(1_800))


def first_to_payee(episode: Episode) -> None:
    """A new payee gets a large sum."""
    _step(episode, "payee_added", "mule")
    episode.wait(2 * HOUR, 1.5)
    _pay(episode, "mule", episode.about(700))


def without_code(episode: Episode) -> None:
    """A code is sent and never used, and money leaves by another way."""
    _step(episode, "code_sent")
    episode.wait(10 * MINUTE)
    _step(episode, "payment", "mule", episode.about(300))


def worn_out(episode: Episode) -> None:
    """Requests come until the customer grants one."""
    for _ in range(episode.some(2, 12)):
        _step(episode, "code_sent")
        episode.wait(50 * SECOND, 0.7)
    _step(episode, "code_passed")
    episode.wait(40 * SECOND, 0.7)
    _step(episode, "payment", "mule", episode.about(600))


def talked_into(episode: Episode) -> None:
    """A deceiver is paid again and again, mostly more each time."""
    _step(episode, "payee_added", "adviser")
    paid = episode.about(600)
    for _ in range(episode.some(1, 6)):
        episode.wait(12 * HOUR, 1.2)
        _pay(episode, "adviser", paid)
        paid = round(paid * float(episode.random.uniform(0.8, 2.0)), 2)


def limit_used(episode: Episode) -> None:
    """The limit is raised and used."""
    _step(episode, "limit_raised")
    episode.wait(5 * HOUR, 1.5)
    _pay(episode, "mule", episode.about(3_500, 0.8))


def card_diverted(episode: Episode) -> None:
    """A card is ordered to a foreign address, where no warning reaches the customer."""
    steps = ["address_changed"]
    if episode.chance(0.7):
        steps.insert(episode.some(0, 1), episode.one_of(["phone_changed", "email_changed"]))
    for step in steps:
        _step(episode, step)
        episode.wait(20 * HOUR)
    episode.wait(3 * DAY, 0.9)
    _step(episode, "card_ordered")


# ------------------------------------------------------------------------------------------------------- insiders


def _act(episode: Episode, customer: str, act: str, case: str | None = None, paid: float | None = None) -> None:
    episode.add("staff_event", employee_id=episode.who, customer_id=customer, act=act, case_id=case, paid=paid)


def data_collected(episode: Episode) -> None:
    """An employee looks at one customer after the other to sell the data; some look-ups name a false case."""
    pace = episode.about(70 * SECOND, 0.6)
    for number in range(max(5, int(episode.about(60, 0.8)))):
        _act(episode, f"c{episode.some(0, 3_000)}", "viewed", f"made up {number}" if episode.chance(0.15) else None)
        episode.wait(pace, 0.5)


def paid_by_staff(episode: Episode) -> None:
    """An employee changes the customer's contact and pays out; three in ten leave the payment to a colleague."""
    customer = f"c{episode.some(0, 3_000)}"
    _act(episode, customer, "viewed")
    episode.wait(3 * MINUTE)
    _act(episode, customer, episode.one_of(["contact_changed", "password_reset"]), "made up")
    episode.wait(DAY, 1.2)
    if episode.chance(0.3):
        episode.who = episode.one_of(episode.others)
    _act(episode, customer, "paid_out", "made up", episode.about(1_200))


def favoured(episode: Episode) -> None:
    """A friend gets limits and waivers."""
    customer = f"c{episode.some(0, 3_000)}"
    for _ in range(episode.some(2, 6)):
        _act(episode, customer, episode.one_of(["limit_changed", "waived"]), None if episode.chance(0.5) else "made up")
        episode.wait(5 * DAY, 0.9)


# -------------------------------------------------------------------------------------------------------- lending


def _loan(episode: Episode, step: str, lender: str, credit: float, device: str | None = None) -> None:
    episode.add("loan_event", customer_id=episode.who, lender=lender, device_id=device, loan_step=step, credit=credit)


def bust_out(episode: Episode) -> None:
    """Months of good payments, then a worthless payment frees the whole limit, which is used up."""
    lender, usual = f"lender {episode.some(0, 5)}", episode.about(300, 0.5)
    months = min(episode.some(2, 12), (episode.at - episode.start) // (30 * DAY))
    episode.at -= months * 30 * DAY
    _loan(episode, "drawn", lender, usual * 12)
    for _ in range(months):
        episode.at += 30 * DAY
        _loan(episode, "repaid", lender, usual)
    episode.honest = len(episode.rows)
    episode.wait(5 * DAY)
    bad = episode.about(3_500, 0.8)
    _loan(episode, "repaid", lender, bad)
    for _ in range(draws := episode.some(1, 3)):
        episode.wait(DAY)
        _loan(episode, "drawn", lender, round(bad * float(episode.random.uniform(0.6, 1.1)) / draws, 2))
    episode.wait(4 * DAY, 0.7)
    _loan(episode, "returned", lender, bad)


def stacked(episode: Episode) -> None:
    """The borrower asks one lender after the other, before the lenders see each other's loans."""
    amount = episode.about(1_500)
    lenders = episode.some(2, 10)
    for number in range(lenders):
        _loan(episode, "applied", f"lender {number}", episode.about(amount, 0.4), f"phone of {episode.who}")
        episode.wait(5 * DAY / lenders)
    for number in range(lenders):
        if episode.chance(0.6):
            _loan(episode, "drawn", f"lender {number}", amount)


def made_up(episode: Episode) -> None:
    """Made-up customers apply from one device."""
    device = f"ring {episode.at}"
    for _ in range(episode.some(2, 8)):
        episode.who = f"made up {episode.some(0, 10**9)}"
        _loan(episode, "applied", f"lender {episode.some(0, 5)}", episode.about(2_000), device)
        episode.wait(14 * HOUR)


def never_paid(episode: Episode) -> None:
    """A made-up person draws a loan; one in five pays a little once, to be left alone for longer."""
    episode.who = f"made up {episode.some(0, 10**9)}"
    drawn, lender = episode.about(2_000), f"lender {episode.some(0, 5)}"
    _loan(episode, "applied", lender, drawn, f"phone {episode.some(0, 10**9)}")
    episode.wait(2 * DAY)
    _loan(episode, "drawn", lender, drawn)
    if episode.chance(0.2):
        episode.wait(28 * DAY, 0.1)
        _loan(episode, "repaid", lender, round(drawn / 24, 2))


TAKE_OVER: Mapping[str, Plant] = {
    each.__name__: each
    for each in (
        contact_changed, sim_swapped, taken_over, remote_helper, first_to_payee, without_code, worn_out, talked_into,
        limit_used, card_diverted,
    )
}  # fmt: skip
INSIDERS: Mapping[str, Plant] = {each.__name__: each for each in (data_collected, paid_by_staff, favoured)}
LENDING: Mapping[str, Plant] = {each.__name__: each for each in (bust_out, stacked, made_up, never_paid)}
