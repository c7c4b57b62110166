"""A seed → a pattern, two sets of its parameters, and payments around the change from one to the other.

The payments before the change mean the same under both sets. If the runs are handed over, the job must give the alerts
of a job that had the new version from the beginning; otherwise the alerts of `drain`.
"""

from dataclasses import dataclass
from random import Random

import orjson

from cep.base.text import utc_ms, utc_text
from cep.model.rule import UpsertRecord
from tests.rulebook.records import upsert

HALF = 0.5
MIDDLE_MS = utc_ms("2026-03-01T12:00:00Z")
_STRUCTURES = (
    "a{n,} -> b", "a{n} -> b", "a+ -> b", "a -> b", "a{n,} until (amount == stop) -> b",
    "a+ until (amount == stop) -> b", "a -> !c -> b", "a{n,} -> !c -> b", "a -> b{n}", "(a, b)", "a -> b -> !c",
    "a{1,n} -> b", "(a -> b){n} -> d",
)  # fmt: skip
_PARAMS: dict[str, tuple[object, ...]] = {
    "low": (2, 5, 8), "high": (40, 50, 60), "stop": (30, 31), "veto": (70, 71), "n": (2, 3, 4),
    "window": ("30 min", "90 min"),
}  # fmt: skip
_AMOUNTS = (1, 3, 6, 20, 30, 31, 45, 55, 65, 70, 71, 90)
_SOURCE = """
event payment {{
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
}}
pattern shape(low: decimal = 2.00, high: decimal = 40.00, stop: decimal = 30.00, veto: decimal = 70.00, n: int = 2,
              window: duration = 30 min) by card_id {{
  seq    {structure}  within window
  where  {where}
  skip   {skip}
  emit   first = count(a){timeout}
}}
"""
_WHERE = {
    "a": "payment  amount < low", "b": "payment  amount > high and amount != veto", "c": "payment  amount == veto",
    "d": "payment  amount > high",
}  # fmt: skip
_MEANINGS = {"low": "<", "high": ">", "stop": "==", "veto": "=="}


@dataclass(frozen=True)
class Case:
    """The records of both versions without `on_update`, and the payments as JSON lines."""

    seed: int
    source: str
    before: dict[str, object]
    after: dict[str, object]
    lines: list[bytes]

    def version(self, number: int, params: dict[str, object], on_update: str, effective_ms: int | None) -> UpsertRecord:
        return upsert(
            number, "shape", effective_ms, pattern="shape", source=self.source, params=params, on_update=on_update,
            message="{first} on {key}",
        )  # fmt: skip

    def versions(self, on_update: str) -> list[UpsertRecord]:
        """Return the records of both versions; the second one begins in the middle."""
        return [self.version(1, self.before, "drain", None), self.version(2, self.after, on_update, MIDDLE_MS)]


def drawn(seed: int) -> Case:
    chance = Random(seed)
    structure = chance.choice(_STRUCTURES)
    names = [name for name in "abcd" if name in structure.replace("until (amount == stop)", "").replace("{n", "")]
    timeout = (
        "\n  on timeout emit  first = count(a)" if chance.random() < 0.25 and "-> !c" not in structure[-5:] else ""
    )
    source = _SOURCE.format(
        structure=structure, where="\n         ".join(f"{name}: {_WHERE[name]}" for name in names),
        skip=chance.choice(("none", "past last", "to next")), timeout=timeout,
    )  # fmt: skip
    before = {name: chance.choice(values) for name, values in _PARAMS.items()}
    changed = chance.sample(sorted(_PARAMS), chance.choice((1, 1, 1, 2)))
    after = {name: chance.choice(_PARAMS[name]) if name in changed else value for name, value in before.items()}
    plain = [amount for amount in _AMOUNTS if _means(amount, before) == _means(amount, after)]
    lines = []
    for number in range(900):
        at_ms = MIDDLE_MS + (number - 450) * 4_000
        amounts = plain if at_ms < MIDDLE_MS else _AMOUNTS
        weights = [4 if amount < 10 else 1 for amount in amounts]
        lines.append(
            orjson.dumps({
                "event_type": "payment", "tx_id": f"t{number}", "card_id": f"c{chance.randrange(25)}",
                "event_time": utc_text(at_ms), "amount": f"{chance.choices(amounts, weights)[0]}.00",
            })
        )  # fmt: skip
    return Case(seed, source, before, after, lines)


def _means(amount: int, params: dict[str, object]) -> list[bool]:
    tests = {"<": amount.__lt__, ">": amount.__gt__, "==": amount.__eq__}
    return [bool(tests[test](int(str(params[name])))) for name, test in _MEANINGS.items()]
