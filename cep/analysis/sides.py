"""Events that name a key in several fields → one event for each of these fields, as patterns with `produce` make them.

    transfer payer=a payee=b ─┬─▶ transfer_payer party=a …     mined by party: what an account receives and sends
                              └─▶ transfer_payee party=b …

So a sequence may go over both sides of an account. Money that is passed on gives one more event for each account:

    transfer a→b, b→c        ─▶ transfer_passed    party=a payer=c     c has the money of a now
    transfer a→b, b→c, c→d   ─▶ transfer_passed_2  party=a payer=d

Money that comes back in a circle is then a sequence on the key of `a`: its money is passed on to `c`, and then it
receives a transfer from `c`. The events of sides are made here over columns, the events of passed money by the engine.
The patterns of the text make equal events in every runner.
Tested by: tests/analysis/test_suggest.py
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.analysis.history import Events, replay_history
from cep.analysis.labelled_events import LabelledEvents
from cep.analysis.suggested_text import declarations
from cep.base.errors import UsageError
from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema, Type
from cep.base.terminal import Terminal
from cep.columnar.batch import TEXT
from cep.lang.field_names import Role, role_of
from cep.lang.show import show_duration
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.sources.pieces import Pieces

JOIN = "+"  # between the fields of a key, as in payer+payee
_PARTY = "party"
_ID = "side_id"


@dataclass(frozen=True, slots=True)
class Sides:
    """The N events of all sides with their labels, their key, the text that makes them, and its patterns.

    `source_row` int64[N] is the row of the event of which each was made.
    """

    events: Events
    labelled: LabelledEvents
    source_row: NDArray[np.int64]
    key: str
    text: str
    producers: tuple[str, ...]


def sides_of(events: Events, labelled: LabelledEvents, fields: Sequence[str]) -> Sides:
    """Split each event into its sides, one event per field of the key. With payer and payee, a transfer becomes a
    transfer_payer and a transfer_payee, both with the key `party`, so that a sequence sees all events of a party. The
    patterns `producers` of `text` make the same events. Raises: UsageError for fields of different types."""
    types = events.schema.columns()
    key_type = types[fields[0]].as_nullable(False)
    if any(types[name].as_nullable(False) != key_type for name in fields):
        raise UsageError(f"--key {JOIN.join(fields)}: the fields have different types, so no value is in both")
    used_names = set(types)
    key, id_ = (f"{name}_" if name in used_names else name for name in (_PARTY, _ID))  # two free names
    side_types: list[EventType] = []
    rows, codes, parties, texts, producers = [], [], list[pa.Array](), list[str](), list[str]()
    for code, event_type in enumerate(events.schema.event_types):
        for name in fields:
            if event_type.derived or name not in event_type.types:
                continue
            values = [field for field in event_type.fields if field.name in events.columns]
            side_fields = (Field(id_, Type(Kind.ID)), Field(TIME_FIELD, Type(Kind.TIME)), Field(key, key_type), *values)
            side = EventType(f"{event_type.name}_{name}", side_fields)
            side_rows = np.flatnonzero((events.event_type == code) & np.asarray(events.columns[name].is_valid()))
            rows.append(side_rows)
            codes.append(np.full(len(side_rows), len(side_types), np.int16))
            parties.append(events.columns[name].take(pa.array(side_rows)))
            producers.append(f"side_{event_type.name}_{name}")
            texts.append(_producer(producers[-1], event_type, side, (key, name)))
            side_types.append(side)
    row, schema = np.concatenate(rows), Schema(tuple(side_types))
    columns = {name: column.take(pa.array(row)) for name, column in events.columns.items()}
    ids = events.event_id.take(pa.array(row)).cast(TEXT)
    columns[key] = pa.concat_arrays(parties)
    side_events = Events(schema, ids, np.concatenate(codes), events.time_ms[row], columns)
    text = "\n\n".join([declarations(schema), *texts])
    return Sides(side_events, labelled.take(row), row, key, text, tuple(producers))


def _producer(name: str, event_type: EventType, side: EventType, key_and_field: tuple[str, str]) -> str:
    """Write the pattern that produces the events of one side of an event, such as the payer's side of a transfer."""
    key, field = key_and_field
    _, _, _, *copied = side.fields  # without its id, its time and its key
    values = [f"{each.name} = t.{each.name}" for each in copied]
    emitted = (",\n" + " " * 11).join([f"{key} = t.{field}", *values])
    return "\n".join([
        f"## Makes an event of each {event_type.name} for its {field}.",
        f"pattern {name}",
        f"  by {field}",
        "{",
        "  seq      t",
        f"  where    t: {event_type.name}",
        f"  emit     {emitted}",
        f"  produce  {side.name}",
        "}",
    ])  # fmt: skip


def live_rules(source: str, names: Sequence[str]) -> list[UpsertRecord]:
    """Return a live rule for each of these patterns of the text."""
    return [
        UpsertRecord(
            id=name, version=1, pattern=name, status="live", severity="low", owner="suggest", message="{key}",
            source=source,
        )
        for name in names
    ]  # fmt: skip


_PASSED_MS = 3 * 86_400_000  # from receipt to payment
_PASSED_SHARE_MIN = 0.8  # of the received money is paid
_TIMES_PASSED_MAX = 2  # circles of three and of four transfers
_CORES = 2


def with_circles(
    sides: Sides, source: tuple[Events, LabelledEvents, Callable[[Schema], Pieces]], fields: Sequence[str], head: str
) -> Sides:
    """Add the events of money that is passed on. `fields` are the payer and the payee, and the text `head` declares the
    source events. Without two fields that all events have, the sides stay unchanged. Raises: SourceError."""
    events, labelled, pieces_of = source
    types: list[EventType] = []
    blocks, producers = list[str](), list[str]()
    passed_types: dict[tuple[str, int], EventType] = {}
    for event_type in events.schema.event_types:
        if (
            len(fields) == 2
            and not event_type.derived
            and all(name in event_type.types and not event_type.types[name].nullable for name in fields)
        ):
            for times_passed in range(1, _TIMES_PASSED_MAX + 1):
                passed = _passed_type(event_type, sides, times_passed, fields[0])
                producers.append(f"side_{passed.name}")
                blocks.append(_passing_producer(event_type, passed, times_passed, (sides.key, fields[0], fields[1])))
                types.append(passed)
                passed_types[event_type.name, times_passed] = passed
    if not types:
        return sides
    text = "\n\n".join([sides.text, declarations(Schema(tuple(types))), *blocks])
    names = (*sides.producers, *producers)
    schema = Schema((*sides.events.schema.event_types, *types))
    passed_events = _passed_events(events, deploy(live_rules(f"{head}\n\n{text}", names)), pieces_of)
    rows, codes, parties = [], [], list[pa.Array]()
    for (name, times_passed), passed in passed_types.items():
        first, last = passed_events.get(times_passed + 1, (np.empty(0, np.int64),) * 2)
        of_type = events.event_type[last] == events.schema.code(name)
        rows.append(last[of_type])
        codes.append(np.full(len(rows[-1]), schema.code(passed.name), np.int16))
        parties.append(events.columns[fields[0]].take(pa.array(first[of_type])))
    row = np.concatenate(rows)
    columns = {name: column.take(pa.array(row)) for name, column in events.columns.items()}
    columns |= {fields[0]: columns[fields[1]], fields[1]: pa.nulls(len(row), columns[fields[1]].type)}
    columns[sides.key] = pa.concat_arrays(parties)
    joined = Events(
        schema,
        pa.concat_arrays([sides.events.event_id, events.event_id.take(pa.array(row)).cast(TEXT)]),
        np.concatenate([sides.events.event_type, *codes]),
        np.concatenate([sides.events.time_ms, events.time_ms[row]]),
        {name: pa.concat_arrays([column, columns[name]]) for name, column in sides.events.columns.items()},
    )
    source_row = np.concatenate([sides.source_row, row])
    return Sides(joined, labelled.take(source_row), source_row, sides.key, text, names)


def _passed_type(event_type: EventType, sides: Sides, times_passed: int, payer: str) -> EventType:
    """Return the type of the events of money that is passed on so many times, with the first amount of each event."""
    side = sides.events.schema.event_types[0]
    money = [
        field for field in event_type.fields
        if field.name in sides.events.columns and role_of(field.name) is Role.MONEY
        and field.type.is_number and not field.type.nullable
    ]  # fmt: skip
    suffix = "" if times_passed == 1 else f"_{times_passed}"
    fields = (*side.fields[:3], Field(payer, event_type.types[payer]), *money[:1])
    return EventType(f"{event_type.name}_passed{suffix}", fields)


def _passing_producer(event_type: EventType, passed: EventType, times_passed: int, names: tuple[str, str, str]) -> str:
    """Write the pattern that makes an event when an account passes money on. A transfer a→b also makes two events, its
    sides: transfer_payer with the key a, and transfer_payee with the key b. Then b→c passes the money of a on: the side
    `r`, on which b receives, and the side `p`, on which b pays, make an event with the key a (the origin) and the payer
    c, who has the money now. A second time, c→d, `r` is the event of the first time, and the new payer is d."""
    key, payer, payee = names
    r_type, origin = (f"{event_type.name}_{payee}", payer) if times_passed == 1 else (f"{event_type.name}_passed", key)
    _, _, _, _, *amount_fields = passed.fields  # without its id, time, key and payer
    amounts = [field.name for field in amount_fields]
    conditions = [f"{payee} != r.{origin}", *(f"{name} between {_PASSED_SHARE_MIN} * r.{name} and r.{name}"
                                              for name in amounts)]  # fmt: skip
    emitted = [f"{key} = r.{origin}", f"{payer} = p.{payee}", *(f"{name} = p.{name}" for name in amounts)]
    return "\n".join([
        f"## Makes an event for a {payer} whose money is passed on; {payer} becomes the account that has it now.",
        f"pattern side_{passed.name}",
        f"  by {key if times_passed == 1 else payer}",
        "{",
        f"  seq      r -> p  within {show_duration(_PASSED_MS)}",
        f"  where    r: {r_type}",
        f"           p: {event_type.name}_{payer}  {' and '.join(conditions)}",
        "  skip     none",
        f"  emit     {(',' + chr(10) + ' ' * 11).join(emitted)}",
        f"  produce  {passed.name}",
        "}",
    ])  # fmt: skip


def _passed_events(
    events: Events, deployment: Deployment, pieces_of: Callable[[Schema], Pieces]
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Replay the patterns that make an event for each chain of transfers by which money is passed on. Return the rows
    of the first and of the last transfer of each chain, by the number of transfers in it."""
    history = replay_history(deployment, pieces_of, (), _CORES, Terminal(quiet=True))
    if history.produced_matches is None:  # no produced events
        return {}
    match, row = replace(history, events=events).bound(history.produced_matches)  # rows in `events`
    order = np.lexsort((row, events.time_ms[row], match))
    match, row = match[order], row[order]
    _, start, counts = np.unique(match, return_index=True, return_counts=True)
    return {
        count: (row[start[counts == count]], row[start[counts == count] + count - 1])
        for count in np.unique(counts).tolist()
    }


def needed_sides(plain: Sides, sides: Sides, texts: Iterable[str]) -> Sides:
    """Return `plain` unless one of these patterns reads an event type that only `sides` has."""
    added = {each.name for each in sides.events.schema.event_types} - {
        each.name for each in plain.events.schema.event_types
    }
    return sides if any(f": {name}" in text for text in texts for name in added) else plain
