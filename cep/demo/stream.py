"""A seed → a day of card payments with planted fraud, in event-time order, and the list of planted cases.

Everyday payments cannot trigger the rules of rules/: no tiny amounts, cards that stay at home, and payments of one card
far apart. Around every planted case the card's everyday payments are removed, so that the rules find exactly the
planted cases, but not the near misses.
Tested by: tests/demo/test_demo.py
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
START_MS = 1_772_323_200_000  # 2026-03-01T00:00:00Z

STATUSES = ("approved", "declined", "reversed")
CHANNELS = ("pos", "ecom", "atm", "transfer")
# Country, latitude, longitude.
CITIES = (
    ("FR", 48.8566, 2.3522),
    ("ES", 40.4168, -3.7038),
    ("SE", 59.3293, 18.0686),
    ("GR", 37.9838, 23.7275),
    ("US", 40.7128, -74.0060),
    ("BR", -23.5505, -46.6333),
    ("JP", 35.6762, 139.6503),
    ("ZA", -33.9249, 18.4241),
)
# From home to far away: 5 800 to 8 400 km, which is a flight of eleven hours and no walk of an hour.
_OVERSEAS = {0: 4, 1: 5, 2: 6, 3: 7, 4: 0, 5: 1, 6: 2, 7: 3}
_QUIET_MS = 45 * MINUTE_MS  # no everyday payment of the card this near to a planted one

SCHEMA = pa.schema(
    [
        ("tx_id", pa.string()),
        ("event_time", pa.timestamp("ms", "UTC")),
        ("card_id", pa.string()),
        ("account_id", pa.string()),
        ("amount", pa.decimal128(18, 2)),
        ("status", pa.string()),
        ("channel", pa.string()),
        ("country", pa.string()),
        ("lat", pa.float64()),
        ("lon", pa.float64()),
        ("device_id", pa.string()),
        ("merchant_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The sizes of a stream. Each kind of case has its count of frauds, and `near_misses_count` decoys (no fraud)."""

    cards_count: int = 3_000
    payments_per_card: int = 20
    card_testing_count: int = 12
    small_then_large_count: int = 10
    impossible_travel_count: int = 8
    rising_amounts_count: int = 8
    dormant_then_large_count: int = 6
    near_misses_count: int = 3

    def counts(self) -> dict[str, int]:
        """Planted cases by the rule that has to find them."""
        return {rule_id: getattr(self, f"{rule_id}_count") for rule_id in _MAKERS}


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted case. `key` is the card or account. A near miss (`fires` false) gives none of the alerts."""

    rule_id: str
    key: str
    tx_ids: tuple[str, ...]
    last_ms: int
    fires: bool = True


@dataclass(frozen=True, slots=True)
class Stream:
    """The payments, sorted by event time, and the planted cases."""

    payments: pa.Table
    planted: tuple[Planted, ...]


@dataclass(slots=True)
class _Payment:
    """A planted payment; everyday ones never become objects."""

    time_ms: int
    amount_minor: int
    status: str = "approved"
    channel: str = "ecom"
    city: int | None = None  # None: the card's home


@dataclass(slots=True)
class _Case:
    rule_id: str
    card: int
    fires: bool
    payments: list[_Payment]
    quiet_until_ms: int
    rows: list[int] = field(default_factory=list)


def build(seed: int, size: StreamSize | None = None) -> Stream:
    """Generate a stream of payments and planted fraud from a seed. Cost: about half a second for the default size."""
    size = size or StreamSize()
    random = np.random.default_rng(seed)
    cases = _plan(random, size)
    homes = random.integers(0, len(CITIES), size.cards_count + len(cases))
    columns = _everyday(random, size, homes)
    columns = {name: values[_is_far_enough(columns, cases)] for name, values in columns.items()}
    columns = _with_cases(random, columns, cases, homes)
    order = np.lexsort((columns["card"], columns["time_ms"]))
    columns = {name: values[order] for name, values in columns.items()}
    # The number is the place in time, so that an id is unique and the order of ids is the order of events.
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Stream(_table(columns), tuple(_planted(case, place) for case in cases))


def json_lines(payments: pa.Table) -> Iterator[bytes]:
    """Write one JSON object for each payment, as a producer would send it: times as ISO 8601, nulls left out."""
    times = pc.strftime(payments["event_time"], format="%Y-%m-%dT%H:%M:%SZ")  # %S has the milliseconds
    texts = payments.set_column(1, "event_time", times)
    texts = texts.set_column(4, "amount", payments["amount"].cast(pa.float64()))
    for batch in texts.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield orjson.dumps({name: value for name, value in row.items() if value is not None})


def _plan(random: np.random.Generator, size: StreamSize) -> list[_Case]:
    """Choose the cards and times of the cases. Each has a card of its own, which is quiet until `quiet_until_ms`."""
    counts = {name: (count, size.near_misses_count) for name, count in size.counts().items()}
    cards_count = sum(frauds + decoys for name, (frauds, decoys) in counts.items() if name != "dormant_then_large")
    assert cards_count <= size.cards_count, "more planted cases than cards"
    cards = iter(random.permutation(size.cards_count)[:cards_count].tolist())
    dormant_cards = iter(range(size.cards_count, size.cards_count + sum(counts["dormant_then_large"])))
    cases = []
    for rule_id, (frauds, decoys) in counts.items():
        for number in range(frauds + decoys):
            card = next(dormant_cards if rule_id == "dormant_then_large" else cards)
            start_ms = START_MS + int(random.integers(2 * HOUR_MS, 20 * HOUR_MS))
            payments = _MAKERS[rule_id](random, start_ms, number < frauds)
            quiet_until_ms = payments[-1].time_ms + _QUIET_MS
            if rule_id == "impossible_travel":  # or the way home would be impossible as well
                quiet_until_ms = START_MS + 2 * DAY_MS
            cases.append(_Case(rule_id, card, number < frauds, payments, quiet_until_ms))
    return cases


def _card_testing(random: np.random.Generator, start_ms: int, fires: bool) -> list[_Payment]:
    """Plan three to five tiny declines and a large approval; the near miss stops trying after two."""
    tries = int(random.integers(3, 6)) if fires else 2
    times = start_ms + np.arange(tries + 1) * int(random.integers(20_000, 90_000))
    probes = [_Payment(t, int(random.integers(50, 200)), "declined") for t in times[:-1].tolist()]
    return [*probes, _Payment(int(times[-1]), int(random.integers(60_000, 200_000)))]


def _small_then_large(random: np.random.Generator, start_ms: int, fires: bool) -> list[_Payment]:
    """Plan a tiny purchase and a large one within the minute; the near miss takes a second more than the minute."""
    gap_ms = int(random.integers(5_000, 60_000)) if fires else 61_000
    return [
        _Payment(start_ms, int(random.integers(10, 100))),
        _Payment(start_ms + gap_ms, int(random.integers(60_000, 200_000))),
    ]


def _impossible_travel(random: np.random.Generator, start_ms: int, fires: bool) -> list[_Payment]:
    """Plan a payment at home and, within the hour, one overseas (`city` -1); the near miss has taken a plane."""
    gap_ms = int(random.integers(30 * MINUTE_MS, 90 * MINUTE_MS)) if fires else 11 * HOUR_MS
    home = _Payment(start_ms, int(random.integers(1_000, 9_000)), channel="pos")
    return [home, _Payment(start_ms + gap_ms, int(random.integers(5_000, 40_000)), channel="pos", city=-1)]


def _rising_amounts(random: np.random.Generator, start_ms: int, fires: bool) -> list[_Payment]:
    """Plan five purchases, each half as large again; the near miss stops at four."""
    steps = 5 if fires else 4
    amounts = int(random.integers(1_000, 4_000)) * 1.5 ** np.arange(steps)
    times = start_ms + np.arange(steps) * int(random.integers(60_000, 240_000))
    return [_Payment(t, a) for t, a in zip(times.tolist(), amounts.astype(np.int64).tolist(), strict=True)]


def _dormant_then_large(random: np.random.Generator, start_ms: int, fires: bool) -> list[_Payment]:
    """Plan a purchase, months of silence, a large transfer; the near miss was silent for 89 days."""
    silent_ms = int(random.integers(101, 300)) * DAY_MS if fires else 89 * DAY_MS
    return [
        _Payment(start_ms - silent_ms, int(random.integers(1_000, 9_000))),
        _Payment(start_ms, int(random.integers(600_000, 2_000_000)), channel="transfer"),
    ]


_MAKERS = {
    "card_testing": _card_testing,
    "small_then_large": _small_then_large,
    "impossible_travel": _impossible_travel,
    "rising_amounts": _rising_amounts,
    "dormant_then_large": _dormant_then_large,
}


def _everyday(random: np.random.Generator, size: StreamSize, homes: Ints) -> dict[str, Ints | Floats]:
    """Make the everyday payments, unsorted.

    A card's day is cut into equal slots, with one payment in the first four fifths of each. So two payments of a card
    are at least ten minutes apart, and five never fall within half an hour.
    """
    counts = random.integers(size.payments_per_card - 6, size.payments_per_card + 7, size.cards_count)
    counts = np.maximum(counts, 1)
    card = np.repeat(np.arange(size.cards_count), counts)
    slot = np.arange(len(card)) - np.repeat(np.cumsum(counts) - counts, counts)  # 0, 1, … of a card
    slot_ms = DAY_MS // np.repeat(counts, counts)
    time_ms = START_MS + slot * slot_ms + (random.random(len(card)) * 0.8 * slot_ms).astype(np.int64)
    channel = random.choice(len(CHANNELS), len(card), p=[0.55, 0.33, 0.07, 0.05])
    # At least 3.00, because tiny amounts belong to card testing. At most 4 500.00, below any large transfer.
    amount_minor = np.clip(np.exp(random.normal(8.1, 1.0, len(card))), 300, 450_000).astype(np.int64)
    return {
        "time_ms": time_ms,
        "card": card,
        "amount_minor": amount_minor,
        "status": random.choice(len(STATUSES), len(card), p=[0.95, 0.04, 0.01]),
        "channel": channel,
        "city": homes[card],
        "north_km": random.normal(0.0, 8.0, len(card)),
        "east_km": random.normal(0.0, 8.0, len(card)),
        "merchant": random.integers(0, 800, len(card)),
    }


def _is_far_enough(columns: dict[str, Ints | Floats], cases: list[_Case]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return False for everyday payments in the quiet time around the planted payments of the same card."""
    cards_count = int(columns["card"].max()) + 1
    quiet_from = np.full(cards_count, np.iinfo(np.int64).max)  # by card; without a case, never
    quiet_until = np.full(cards_count, np.iinfo(np.int64).min)
    for case in cases:
        if case.card < cards_count:  # other cards have no everyday payments
            quiet_from[case.card] = case.payments[0].time_ms - _QUIET_MS
            quiet_until[case.card] = case.quiet_until_ms
    card = columns["card"].astype(np.int64)
    is_quiet = (columns["time_ms"] >= quiet_from[card]) & (columns["time_ms"] < quiet_until[card])
    return ~is_quiet


def _with_cases(
    random: np.random.Generator, columns: dict[str, Ints | Floats], cases: list[_Case], homes: Ints
) -> dict[str, Ints | Floats]:
    """Append the payments of the planted cases, and store their rows in the cases. `homes`: the city of each card."""
    rows: list[tuple[int, int, int, int, int, int]] = []
    offset = len(columns["card"])  # the row of the first planted payment
    for case in cases:
        home = int(homes[case.card])
        for payment in case.payments:
            case.rows.append(offset + len(rows))
            city = home if payment.city is None else _OVERSEAS[home]  # at home, or far away
            status, channel = STATUSES.index(payment.status), CHANNELS.index(payment.channel)
            rows.append((payment.time_ms, case.card, payment.amount_minor, status, channel, city))
    planted_columns = dict(
        zip(("time_ms", "card", "amount_minor", "status", "channel", "city"), np.array(rows, np.int64).T, strict=True)
    )
    more: dict[str, Ints | Floats] = {
        **planted_columns,
        "north_km": np.zeros(len(rows)),
        "east_km": np.zeros(len(rows)),
        "merchant": random.integers(0, 800, len(rows)),  # one of 800 merchants
    }
    return {name: np.concatenate([values, more[name]]) for name, values in columns.items()}


def _planted(case: _Case, place: Ints) -> Planted:
    name = f"A{case.card:06d}" if case.rule_id == "dormant_then_large" else f"C{case.card:06d}"
    tx_ids = tuple(f"T{number:08d}" for number in place[case.rows].tolist())
    return Planted(case.rule_id, name, tx_ids, case.payments[-1].time_ms, case.fires)


def _table(columns: dict[str, Ints | Floats]) -> pa.Table:
    """Return the columns of SCHEMA. Terminal payments have a position, purchases a merchant, online ones a device."""
    channel = columns["channel"]
    city = columns["city"].astype(np.int64)
    at_terminal = (channel == CHANNELS.index("pos")) | (channel == CHANNELS.index("atm"))
    is_online = channel == CHANNELS.index("ecom")
    is_purchase = is_online | (channel == CHANNELS.index("pos"))
    latitude = np.array([c[1] for c in CITIES])[city]  # of the city of each payment
    longitude = np.array([c[2] for c in CITIES])[city]
    km_per_degree = 111.2  # of latitude
    lat = np.round(latitude + columns["north_km"] / km_per_degree, 5)
    lon = np.round(longitude + columns["east_km"] / (km_per_degree * np.cos(np.radians(latitude))), 5)
    cents = pa.array(columns["amount_minor"]).cast(pa.decimal128(19, 0))
    return pa.table(
        [
            _names("T", np.arange(len(channel)), 8),
            pa.array(columns["time_ms"]).cast(pa.timestamp("ms", "UTC")),
            _names("C", columns["card"], 6),
            _names("A", columns["card"], 6),
            pc.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(pa.decimal128(18, 2)),
            pa.array(np.array(STATUSES)[columns["status"].astype(np.int64)]),
            pa.array(np.array(CHANNELS)[channel.astype(np.int64)]),
            pa.array(np.array([c[0] for c in CITIES])[city]),
            pa.array(lat, mask=~at_terminal),
            pa.array(lon, mask=~at_terminal),
            pc.if_else(pa.array(is_online), _names("D", columns["card"], 6), pa.scalar(None, pa.string())),
            pc.if_else(pa.array(is_purchase), _names("M", columns["merchant"], 4), pa.scalar(None, pa.string())),
        ],
        schema=SCHEMA,
    )


def _names(letter: str, numbers: Ints | Floats, width: int) -> pa.Array:
    digits = np.char.zfill(numbers.astype(np.int64).astype(str), width)
    return pa.array(np.char.add(letter, digits))
