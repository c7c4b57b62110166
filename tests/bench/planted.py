"""A seed → sets of labelled events: the honest months of a bank and of the firms around it, with planted frauds.

A set has one event type: `takeover`, `insiders`, `lending`, `money`, `wallets`, `sessions`, `guesses`. Several banks
make one set; loans cover a year, as a borrower's good months come first. Frauds begin at any time, so each kind is in
each part of the time. Events of a fraud that would come after the last honest one are left out. A fraud is one label,
an episode, however many events it has.

Each function of an episode writes one from the description of its typology in the rules and manuals that `patterns/`
names as sources. Amounts, gaps and counts are drawn around typical values of such a case, with a wide spread. They do
not know the thresholds of the patterns, and many of the episodes lie below them.
Tested by: tests/bench/test_baselines.py
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.testing.honest import honest_firms, honest_months

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
