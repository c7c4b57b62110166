"""Decoys that an attacker plays against the patterns of the library, and the patterns that each kind of decoy evades.

    python -m tests.testing.evasion

writes the table of `patterns/README.md`. A decoy changes the events of the first test that expects a match, so that the
fraud takes place all the same. It evades the pattern if one of its variants gives no alert. The variants of all decoys
go through the engine together, each with its own key. A decoy depends only on the seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Field, Kind, Schema
from cep.engine.advance import advance
from cep.lang.ir import PatternIR, PatternTest, ScriptedEvent, Slot
from cep.lang.load import Checked
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.testing.events import batch_of
from cep.testing.harness import START_MS
from tests.testing.library import README, entries, library

SEED = 20
VARIANTS = 12
_HOUR_MS = 3_600_000
Events = list[ScriptedEvent]
Play = Callable[["Fraud", Random], Iterator[Events]]


@dataclass(frozen=True, slots=True)
class Fraud:
    """The events of one key in a test that expects a match, with the schema and pattern that decoys need."""

    schema: Schema
    pattern: PatternIR
    events: Events

    def fields(self, event: ScriptedEvent) -> tuple[Field, ...]:
        """Return the fields of an event, without the key and the id."""
        event_type = self.schema.event_types[self.schema.code(event.event_type)]
        values = dict(event.fields)
        return tuple(f for f in event_type.fields if f.name in values and f.name not in self.pattern.key)

    def changed(self, event: ScriptedEvent, name: str, **values: Slot) -> ScriptedEvent:
        """Return another event with these values; `name` makes its id."""
        fields = {**dict(event.fields), **values}
        return replace(event, event_id=f"{event.event_id}-{name}", fields=tuple(fields.items()))

    def cheap(self, event: ScriptedEvent, name: str) -> ScriptedEvent:
        """Return the same event with the smallest possible amounts."""
        return self.changed(event, name, **{f.name: 1 for f in self.fields(event) if f.type.kind is Kind.DECIMAL})


def cheap_events(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Put a cheap event between every two events."""
    for _ in range(VARIANTS):
        changed: Events = []
        for number, event in enumerate(fraud.events):
            if number:
                middle_ms = (changed[-1].time_ms + event.time_ms) // 2
                changed.append(replace(_random_event(fraud, changed[-1], random, number), time_ms=middle_ms))
            changed.append(event)
        yield changed


def _random_event(fraud: Fraud, event: ScriptedEvent, random: Random, number: int) -> ScriptedEvent:
    values: dict[str, Slot] = {}
    for field in fraud.fields(event):
        if field.type.kind is Kind.ENUM:
            values[field.name] = random.randrange(len(field.type.symbols))
        elif field.type.kind is Kind.STRING:
            values[field.name] = f"decoy {number}"
    return fraud.changed(fraud.cheap(event, "cheap"), str(number), **values)


def priming(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Make the country, device or payee of the last event known by an earlier event of a cent."""
    for hours in (1, 2, 25, 49, 24 * 8, 24 * 31):
        time_ms = fraud.events[0].time_ms - hours * _HOUR_MS
        yield [replace(fraud.cheap(fraud.events[-1], "primed"), time_ms=time_ms), *fraud.events]


def hops(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Use another device, merchant or payee for each event."""
    if len(fraud.events) > 1:
        yield [
            fraud.changed(
                event, "hop",
                **{
                    f.name: f"{value}-{number}"
                    for f in fraud.fields(event)
                    if f.type.kind is Kind.STRING and (value := dict(event.fields)[f.name]) is not None
                },
            )
            for number, event in enumerate(fraud.events)
        ]  # fmt: skip


def ties(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Give two neighbouring events the same time, and the first one the greater id, which decides nothing."""
    for number in range(1, len(fraud.events)):
        first, second = fraud.events[number - 1], fraud.events[number]
        pair = [replace(first, event_id=f"z{number}"), replace(second, event_id=f"a{number}", time_ms=first.time_ms)]
        yield [*fraud.events[: number - 1], *pair, *fraud.events[number + 1 :]]


def clock_skew(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Set the clock of one event back, so that the event seems to come before the event that it follows."""
    for number in range(1, len(fraud.events)):
        skewed = replace(fraud.events[number], time_ms=fraud.events[number - 1].time_ms - 60_000)
        yield [*fraud.events[:number], skewed, *fraud.events[number + 1 :]]


def late(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Let one event arrive so late that the job sets it aside."""
    for number in range(len(fraud.events) - 1):
        yield [*fraud.events[:number], *fraud.events[number + 1 :]]


def look_alike(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Write the key in another way in the first part of the events: with a blank, a capital, another alphabet."""
    for number in range(1, len(fraud.events)):
        yield [replace(e, key=f"{e.key}{'' if n >= number else ' '}") for n, e in enumerate(fraud.events)]


def splitting(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Pay each amount in parts, one right after the other."""
    for parts in (2, 3, 5, 10):
        changed: Events = []
        for event in fraud.events:
            amounts = {f.name: dict(event.fields)[f.name] for f in fraud.fields(event) if f.type.kind is Kind.DECIMAL}
            parted = {n: max(1, int(a) // parts) for n, a in amounts.items() if a is not None and int(a) > parts}
            for part in range(parts if parted else 1):
                time_ms = event.time_ms + part
                changed.append(replace(fraud.changed(event, f"part-{part}", **parted), time_ms=time_ms))
        yield changed


def slow(fraud: Fraud, random: Random) -> Iterator[Events]:
    """Take two, ten or a hundred times as long."""
    if len(fraud.events) > 1:
        for factor in (2, 10, 100):
            yield [replace(event, time_ms=event.time_ms * factor) for event in fraud.events]


# In the order of the columns. None: judged by `emit`, see `hides_behind_a_small_one`.
DECOYS: dict[str, Play | None] = {
    "cheap events": cheap_events,
    "priming": priming,
    "hops": hops,
    "ties": ties,
    "clock skew": clock_skew,
    "late": late,
    "look-alike": look_alike,
    "small first": None,
    "splitting": splitting,
    "slow": slow,
}
_HEAD = f"| pattern | {' | '.join(DECOYS)} |"


def hides_behind_a_small_one(pattern: PatternIR) -> bool:
    """Say whether `suppress` can hide a large fraud after a small one: the alert has no number to `escalate`."""
    return not any(measure.value.type.is_number for measure in pattern.measures)


def evasions(checked: Checked, name: str) -> dict[str, bool | None]:
    """Say of each decoy if it evades the pattern; None if it cannot be played."""
    fraud = _fraud(checked, name)
    played: list[tuple[str, Events]] = [("", fraud.events)]
    for decoy, play in DECOYS.items():
        if play is not None:
            played += [(decoy, events) for events in play(fraud, Random(f"{SEED} {name} {decoy}"))]
    alerted = _alerted(fraud, [events for _, events in played])
    assert alerted[0], f"{name}: the test itself gives no alert"
    outcomes: dict[str, bool | None] = dict.fromkeys(DECOYS)
    for (decoy, _), is_alerted in zip(played[1:], alerted[1:], strict=True):
        outcomes[decoy] = bool(outcomes[decoy]) or not is_alerted
    outcomes["small first"] = hides_behind_a_small_one(fraud.pattern)
    return outcomes


def _fraud(checked: Checked, name: str) -> Fraud:
    """Return the events of the first key with a match, from the first test that has one."""
    for test in _tests(checked, name):
        for key in dict.fromkeys(event.key for event in test.events):
            events = sorted((e for e in test.events if e.key == key), key=lambda e: e.time_ms)
            fraud = Fraud(checked.schema, test.pattern, events)
            if _alerted(fraud, [events])[0]:
                return fraud
    raise AssertionError(f"{name} has no test that expects a match")


def _tests(checked: Checked, name: str) -> Iterator[PatternTest]:
    for test in checked.tests:
        if test.pattern.name == name and test.expected and not any(one.is_timeout for one in test.expected):
            yield test


def _alerted(fraud: Fraud, variants: Sequence[Events]) -> list[bool]:
    """Say of each variant if one of its keys has a match. Each variant has its own keys."""
    numbered: Events = []
    for number, events in enumerate(variants):
        for event in events:
            fields = dict(event.fields)
            changed = {name: f"{number}|{event.key}|{fields[name]}" for name in fraud.pattern.key}
            numbered.append(
                replace(event, event_id=f"{number}|{event.event_id}", fields=tuple({**fields, **changed}.items()))
            )
    rule = DeployedRule("test", 1, 1, "test", fraud.pattern)
    program = compile_rules(fraud.schema, fraud.pattern.key, (rule,))
    matches = advance(program, None, batch_of(fraud.schema, numbered, fraud.pattern.key, START_MS), TIME_MS_MAX).matches
    keys = matches.keys.to_pylist()
    alerted_numbers = {
        int(keys[key].partition("|")[0])
        for key, is_match in zip(matches.key, matches.completed, strict=True)
        if is_match
    }
    return [number in alerted_numbers for number in range(len(variants))]


def row(name: str, outcomes: dict[str, bool | None]) -> str:
    """Return the row of a pattern: `evades`, an empty cell, or a dash if a decoy cannot be played."""
    cells = ("–" if outcome is None else "evades" if outcome else "" for outcome in outcomes.values())
    return f"| {' | '.join((f'`{name}`', *cells))} |"


def table() -> str:
    checked = library()
    rows = (row(entry.name, evasions(checked, entry.name)) for entry in entries())
    return "\n".join((_HEAD, f"|{' --- |' * (1 + len(DECOYS))}", *rows)) + "\n"


def written_table(text: str) -> str:
    return text[text.index(_HEAD) :].split("\n\n", 1)[0].rstrip("\n") + "\n"


def main() -> None:
    """Write the table into the page."""
    text = README.read_text(encoding="utf-8")
    README.write_text(text.replace(written_table(text), table()), encoding="utf-8")


if __name__ == "__main__":
    main()
