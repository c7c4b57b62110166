"""A seed → episodes of fraud with money, wallets, sessions and logins, to be planted among honest events.

As in `episodes.py`, they follow the descriptions of the typologies and know no pattern's thresholds.
Tested by: tests/bench/test_planted.py
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.episodes import DAY, HOUR, MINUTE, SECOND, Episode, Plant

# FATF's calls for action, and havens that are not on the list.
_FAR = ("IR", "KP", "MM", "PA", "VG", "SC")
_HOME = (52.5, 13.4)

# ---------------------------------------------------------------------------------------------------------- money


def _money(of: Episode, direction: str, means: str, other: str, amount: float, country: str | None = None) -> None:
    of.add(
        "money", account_id=of.who, direction=direction, means=means, counterparty=other, sum_of_money=amount,
        to_country=country,
    )  # fmt: skip


def _share(of: Episode, amount: float, least: float) -> float:
    return round(amount * float(of.random.uniform(least, 1.0)), 2)


def taught_to_buy(of: Episode) -> None:
    """A deceiver persuades a first-time buyer to buy coins."""
    total, parts = of.about(6_000), of.some(1, 5)
    for _ in range(parts):
        _money(of, "outgoing", "exchange", "exchange", round(total / parts, 2))
        of.wait(5 * HOUR)


def turned_to_coins(of: Episode) -> None:
    """Money comes in and becomes coins hours later."""
    amount = of.about(2_500)
    _money(of, "incoming", "transfer", "victim", amount)
    of.wait(2 * HOUR)
    _money(of, "outgoing", "exchange", "exchange", _share(of, amount, 0.8))


def peeled(of: Episode) -> None:
    """Small amounts go to a new address each time."""
    for number in range(of.some(3, 14)):
        _money(of, "outgoing", "exchange", f"address {of.at} {number}", of.about(350, 0.8))
        of.wait(8 * MINUTE)


def mule(of: Episode) -> None:
    """The payments of victims leave within days."""
    total, payers = of.about(9_000), of.some(1, 5)
    for number in range(payers):
        _money(of, "incoming", "transfer", f"victim {of.at} {number}", round(total / payers, 2))
        of.wait(8 * HOUR)
    of.wait(12 * HOUR)
    parts, gone = of.some(1, 3), _share(of, total, 0.7)
    for number in range(parts):
        _money(of, "outgoing", of.one_of(["transfer", "wire", "cash"]), f"boss {number}", round(gone / parts, 2))
        of.wait(5 * HOUR)


def cut_small(of: Episode) -> None:
    """Cash is paid in below the reporting limit."""
    for _ in range(of.some(2, 6)):
        _money(of, "incoming", "cash", "counter", round(float(of.random.uniform(5_000, 9_990)), 2))
        of.wait(7 * HOUR)


def funnelled(of: Episode) -> None:
    """Cash in small sums, then a wire abroad."""
    total = 0.0
    for _ in range(of.some(2, 10)):
        total += (amount := round(float(of.random.uniform(600, 2_990)), 2))
        _money(of, "incoming", "cash", "machine", amount)
        of.wait(15 * HOUR)
    of.wait(DAY)
    _money(of, "outgoing", "wire", "abroad", _share(of, total, 0.6), "TR")


def sent_round(of: Episode) -> None:
    """Money goes away and comes back, to look like business."""
    amount = of.about(7_000)
    _money(of, "outgoing", "transfer", "partner", amount)
    of.wait(4 * DAY)
    _money(of, "incoming", "transfer", "partner", _share(of, amount, 0.88))


def wired_far(of: Episode) -> None:
    """A wire goes to an unusual country for the account: three of the six places are on the list."""
    _money(of, "outgoing", "wire", "abroad", of.about(4_500), of.one_of([*_FAR]))


def kited(of: Episode) -> None:
    """Cheques without cover are paid in, and the money is gone before they bounce."""
    for _ in range(of.some(1, 4)):
        amount = of.about(1_600)
        _money(of, "incoming", "cheque", "own other bank", amount)
        of.wait(DAY)
        _money(of, "outgoing", of.one_of(["transfer", "cash"]), "own other bank", _share(of, amount, 0.6))
        of.wait(2 * DAY)


def many_victims(of: Episode) -> None:
    """Many pay a small sum into one account, which is emptied."""
    total = 0.0
    for number in range(of.some(3, 12)):
        total += (amount := of.about(500, 0.7))
        _money(of, "incoming", "transfer", f"victim {of.at} {number}", amount)
        of.wait(10 * HOUR)
    _money(of, "outgoing", of.one_of(["transfer", "wire"]), "boss", _share(of, total, 0.6))


def round_sums(of: Episode) -> None:
    """Whole thousands go to several others."""
    for number in range(of.some(2, 6)):
        _money(of, "outgoing", "wire", f"firm {of.at} {number}", 1_000.0 * of.some(2, 12), "DE")
        of.wait(5 * DAY)


# -------------------------------------------------------------------------------------------------------- wallets


def _move(of: Episode, move: str, worth: float, address: str | None = None) -> None:
    of.add("wallet_event", wallet_id=of.who, move=move, worth=worth, address=address)


def poisoned(of: Episode) -> None:
    """A look-alike address leaves a tiny payment in the history, and the victim copies the address from there."""
    address = f"look-alike {of.at}"
    _move(of, "deposited", max(0.01, of.about(0.3, 1.2)), address)
    of.wait(3 * DAY)
    _move(of, "withdrawn", of.about(800), address)


def emptied(of: Episode) -> None:
    """A thief turns the account into coins, which leave at once; two in ten find coins in the wallet."""
    worth, address = of.about(6_000), f"thief {of.at}"
    if of.chance(0.8):
        for _ in range(parts := of.some(1, 2)):
            _move(of, "bought", round(worth / parts, 2))
            of.wait(6 * MINUTE, 1.2)
    _move(of, "withdrawn", _share(of, worth, 0.8), address)


# ------------------------------------------------------------------------------------------------------- sessions


def _look(of: Episode, device: str, place: tuple[float, float] | None) -> None:
    lat, lon = place or (None, None)
    of.add("session", user_id=of.who, device_id=device, lat=lat, lon=lon)


def workshop(of: Episode) -> None:
    """One telephone opens account after account."""
    device = f"workshop {of.at}"
    for _ in range(of.some(3, 15)):
        of.who = of.one_of(of.others)
        _look(of, device, _HOME if of.chance(0.7) else None)
        of.wait(HOUR)


def emulated(of: Episode) -> None:
    """An emulator is a new telephone each time."""
    for number in range(of.some(2, 9)):
        _look(of, f"emulated {of.at} {number}", _HOME)
        of.wait(3 * HOUR)


def two_places(of: Episode) -> None:
    """The customer at home, and a thief far away; one in six has also copied the telephone."""
    _look(of, device := f"phone of {of.who}", _HOME)
    of.wait(3 * HOUR)
    lon = _HOME[1] + float(of.random.uniform(5, 120))
    _look(of, device if of.chance(0.16) else f"thief {of.at}", (_HOME[0], lon))


# --------------------------------------------------------------------------------------------------------- logins


def _try(of: Episode, source: str, name: str, *, ok: bool) -> None:
    of.add("login", source_ip=source, user_name=name, ok=ok)


def stuffed(of: Episode) -> None:
    """A thief tries a list of names and passwords; four of five lists have a working one."""
    source, pace = f"bot {of.at}", of.about(6 * SECOND)
    for number in range(max(3, int(of.about(30)))):
        _try(of, source, f"name {of.at} {number}", ok=False)
        of.wait(pace, 0.4)
    _try(of, source, of.who, ok=of.chance(0.8))


def sprayed(of: Episode) -> None:
    """A thief tries a common password on all names, once to three times."""
    source, pace = f"bot {of.at}", of.about(30 * SECOND)
    for number in range(max(5, int(of.about(40, 0.8)))):
        for _ in range(1 + int(of.chance(0.2)) + int(of.chance(0.1))):
            _try(of, source, f"name {of.at} {number}", ok=False)
            of.wait(pace, 0.4)
    if of.chance(0.5):
        _try(of, source, of.who, ok=True)


def guessed_by_many(of: Episode) -> None:
    """A net of machines guesses one password."""
    for number in range(max(3, int(of.about(18)))):
        _try(of, f"bot {of.at} {number}", of.who, ok=False)
        of.wait(2 * MINUTE)
    _try(of, f"bot {of.at}", of.who, ok=of.chance(0.8))


def guessed_by_one(of: Episode) -> None:
    """One machine guesses one password."""
    source, pace = f"bot {of.at}", of.about(8 * SECOND)
    for _ in range(max(3, int(of.about(15)))):
        _try(of, source, of.who, ok=False)
        of.wait(pace, 0.5)
    _try(of, source, of.who, ok=of.chance(0.8))


def sold_login(of: Episode) -> None:
    """A name was sold, and the buyers come in."""
    for number in range(of.some(3, 10)):
        _try(of, f"buyer {of.at} {number}", of.who, ok=True)
        of.wait(9 * MINUTE)


def _by_name(*plants: Plant) -> Mapping[str, Plant]:
    return {plant.__name__: plant for plant in plants}


MONEY = _by_name(
    taught_to_buy, turned_to_coins, peeled, mule, cut_small, funnelled, sent_round, wired_far, kited, many_victims,
    round_sums,
)  # fmt: skip
WALLETS = _by_name(poisoned, emptied)
SESSIONS = _by_name(workshop, emulated, two_places)
LOGINS = _by_name(stuffed, sprayed, guessed_by_many, guessed_by_one, sold_login)
