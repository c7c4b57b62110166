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


def _money(episode: Episode, direction: str, means: str, other: str, amount: float, country: str | None = None) -> None:
    episode.add(
        "money", account_id=episode.who, direction=direction, means=means, counterparty=other, sum_of_money=amount,
        to_country=country,
    )  # fmt: skip


def _share(episode: Episode, amount: float, least: float) -> float:
    return round(amount * float(episode.random.uniform(least, 1.0)), 2)


def taught_to_buy(episode: Episode) -> None:
    """A deceiver persuades a first-time buyer to buy coins."""
    total, parts = episode.about(6_000), episode.some(1, 5)
    for _ in range(parts):
        _money(episode, "outgoing", "exchange", "exchange", round(total / parts, 2))
        episode.wait(5 * HOUR)


def turned_to_coins(episode: Episode) -> None:
    """Money comes in and becomes coins hours later."""
    amount = episode.about(2_500)
    _money(episode, "incoming", "transfer", "victim", amount)
    episode.wait(2 * HOUR)
    _money(episode, "outgoing", "exchange", "exchange", _share(episode, amount, 0.8))


def peeled(episode: Episode) -> None:
    """Small amounts go to a new address each time."""
    for number in range(episode.some(3, 14)):
        _money(episode, "outgoing", "exchange", f"address {episode.at} {number}", episode.about(350, 0.8))
        episode.wait(8 * MINUTE)


def mule(episode: Episode) -> None:
    """The payments of victims leave within days."""
    total, payers = episode.about(9_000), episode.some(1, 5)
    for number in range(payers):
        _money(episode, "incoming", "transfer", f"victim {episode.at} {number}", round(total / payers, 2))
        episode.wait(8 * HOUR)
    episode.wait(12 * HOUR)
    parts, gone = episode.some(1, 3), _share(episode, total, 0.7)
    for number in range(parts):
        _money(
            episode, "outgoing", episode.one_of(["transfer", "wire", "cash"]), f"boss {number}", round(gone / parts, 2)
        )
        episode.wait(5 * HOUR)


def cut_small(episode: Episode) -> None:
    """Cash is paid in below the reporting limit."""
    for _ in range(episode.some(2, 6)):
        _money(episode, "incoming", "cash", "counter", round(float(episode.random.uniform(5_000, 9_990)), 2))
        episode.wait(7 * HOUR)


def funnelled(episode: Episode) -> None:
    """Cash in small sums, then a wire abroad."""
    total = 0.0
    for _ in range(episode.some(2, 10)):
        total += (amount := round(float(episode.random.uniform(600, 2_990)), 2))
        _money(episode, "incoming", "cash", "machine", amount)
        episode.wait(15 * HOUR)
    episode.wait(DAY)
    _money(episode, "outgoing", "wire", "abroad", _share(episode, total, 0.6), "TR")


def sent_round(episode: Episode) -> None:
    """Money goes away and comes back, to look like business."""
    amount = episode.about(7_000)
    _money(episode, "outgoing", "transfer", "partner", amount)
    episode.wait(4 * DAY)
    _money(episode, "incoming", "transfer", "partner", _share(episode, amount, 0.88))


def wired_far(episode: Episode) -> None:
    """A wire goes to an unusual country for the account: three of the six places are on the list."""
    _money(episode, "outgoing", "wire", "abroad", episode.about(4_500), episode.one_of([*_FAR]))


def kited(episode: Episode) -> None:
    """Cheques without cover are paid in, and the money is gone before they bounce."""
    for _ in range(episode.some(1, 4)):
        amount = episode.about(1_600)
        _money(episode, "incoming", "cheque", "own other bank", amount)
        episode.wait(DAY)
        _money(
            episode, "outgoing", episode.one_of(["transfer", "cash"]), "own other bank", _share(episode, amount, 0.6)
        )
        episode.wait(2 * DAY)


def many_victims(episode: Episode) -> None:
    """Many pay a small sum into one account, which is emptied."""
    total = 0.0
    for number in range(episode.some(3, 12)):
        total += (amount := episode.about(500, 0.7))
        _money(episode, "incoming", "transfer", f"victim {episode.at} {number}", amount)
        episode.wait(10 * HOUR)
    _money(episode, "outgoing", episode.one_of(["transfer", "wire"]), "boss", _share(episode, total, 0.6))


def round_sums(episode: Episode) -> None:
    """Whole thousands go to several others."""
    for number in range(episode.some(2, 6)):
        _money(episode, "outgoing", "wire", f"firm {episode.at} {number}", 1_000.0 * episode.some(2, 12), "DE")
        episode.wait(5 * DAY)


# -------------------------------------------------------------------------------------------------------- wallets


def _move(episode: Episode, move: str, worth: float, address: str | None = None) -> None:
    episode.add("wallet_event", wallet_id=episode.who, move=move, worth=worth, address=address)


def poisoned(episode: Episode) -> None:
    """A look-alike address leaves a tiny payment in the history, and the victim copies the address from there."""
    address = f"look-alike {episode.at}"
    _move(episode, "deposited", max(0.01, episode.about(0.3, 1.2)), address)
    episode.wait(3 * DAY)
    _move(episode, "withdrawn", episode.about(800), address)


def emptied(episode: Episode) -> None:
    """A thief turns the account into coins, which leave at once; two in ten find coins in the wallet."""
    worth, address = episode.about(6_000), f"thief {episode.at}"
    if episode.chance(0.8):
        for _ in range(parts := episode.some(1, 2)):
            _move(episode, "bought", round(worth / parts, 2))
            episode.wait(6 * MINUTE, 1.2)
    _move(episode, "withdrawn", _share(episode, worth, 0.8), address)


# ------------------------------------------------------------------------------------------------------- sessions


def _look(episode: Episode, device: str, place: tuple[float, float] | None) -> None:
    lat, lon = place or (None, None)
    episode.add("session", user_id=episode.who, device_id=device, lat=lat, lon=lon)


def workshop(episode: Episode) -> None:
    """One telephone opens account after account."""
    device = f"workshop {episode.at}"
    for _ in range(episode.some(3, 15)):
        episode.who = episode.one_of(episode.others)
        _look(episode, device, _HOME if episode.chance(0.7) else None)
        episode.wait(HOUR)


def emulated(episode: Episode) -> None:
    """An emulator is a new telephone each time."""
    for number in range(episode.some(2, 9)):
        _look(episode, f"emulated {episode.at} {number}", _HOME)
        episode.wait(3 * HOUR)


def two_places(episode: Episode) -> None:
    """The customer at home, and a thief far away; one in six has also copied the telephone."""
    _look(episode, device := f"phone of {episode.who}", _HOME)
    episode.wait(3 * HOUR)
    lon = _HOME[1] + float(episode.random.uniform(5, 120))
    _look(episode, device if episode.chance(0.16) else f"thief {episode.at}", (_HOME[0], lon))


# --------------------------------------------------------------------------------------------------------- logins


def _try(episode: Episode, source: str, name: str, *, ok: bool) -> None:
    episode.add("login", source_ip=source, user_name=name, ok=ok)


def stuffed(episode: Episode) -> None:
    """A thief tries a list of names and passwords; four of five lists have a working one."""
    source, pace = f"bot {episode.at}", episode.about(6 * SECOND)
    for number in range(max(3, int(episode.about(30)))):
        _try(episode, source, f"name {episode.at} {number}", ok=False)
        episode.wait(pace, 0.4)
    _try(episode, source, episode.who, ok=episode.chance(0.8))


def sprayed(episode: Episode) -> None:
    """A thief tries a common password on all names, once to three times."""
    source, pace = f"bot {episode.at}", episode.about(30 * SECOND)
    for number in range(max(5, int(episode.about(40, 0.8)))):
        for _ in range(1 + int(episode.chance(0.2)) + int(episode.chance(0.1))):
            _try(episode, source, f"name {episode.at} {number}", ok=False)
            episode.wait(pace, 0.4)
    if episode.chance(0.5):
        _try(episode, source, episode.who, ok=True)


def guessed_by_many(episode: Episode) -> None:
    """A net of machines guesses one password."""
    for number in range(max(3, int(episode.about(18)))):
        _try(episode, f"bot {episode.at} {number}", episode.who, ok=False)
        episode.wait(2 * MINUTE)
    _try(episode, f"bot {episode.at}", episode.who, ok=episode.chance(0.8))


def guessed_by_one(episode: Episode) -> None:
    """One machine guesses one password."""
    source, pace = f"bot {episode.at}", episode.about(8 * SECOND)
    for _ in range(max(3, int(episode.about(15)))):
        _try(episode, source, episode.who, ok=False)
        episode.wait(pace, 0.5)
    _try(episode, source, episode.who, ok=episode.chance(0.8))


def sold_login(episode: Episode) -> None:
    """A name was sold, and the buyers come in."""
    for number in range(episode.some(3, 10)):
        _try(episode, f"buyer {episode.at} {number}", episode.who, ok=True)
        episode.wait(9 * MINUTE)


def _by_name(*plants: Plant) -> Mapping[str, Plant]:
    return {plant.__name__: plant for plant in plants}


MONEY = _by_name(
    taught_to_buy, turned_to_coins, peeled, mule, cut_small, funnelled, sent_round, wired_far, kited, many_victims,
    round_sums,
)  # fmt: skip
WALLETS = _by_name(poisoned, emptied)
SESSIONS = _by_name(workshop, emulated, two_places)
LOGINS = _by_name(stuffed, sprayed, guessed_by_many, guessed_by_one, sold_login)
