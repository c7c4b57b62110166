"""Rules that feed each other, and a history → the derived events, and the origin of each.

    raw events ─▶ level 1 ─▶ derived events ─▶ level 2 ─▶ …        every match that produces keeps its bound events

A history contains no derived events. So a question about a rule that reads them matches the whole history, not one key.
Tested by: tests/api/test_alerts.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.api.events import ReadKey
from cep.api.given import GivenRules
from cep.api.replay import Terms, job_of
from cep.base.limits import DEDUP_MS_DEFAULT, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.batch import concat_batches
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.route import KeyDomain, route
from cep.engine.alerts import ALERT_ID_CHARS
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule
from cep.sources.files import KeyRecords
from cep.sources.pieces import Pieces
from cep.step.duplicates import without_repeats
from cep.step.history_end import watermark_at_end, within_history
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.programs import programs_by_level


@dataclass(frozen=True, slots=True)
class Past:
    """The records of a history: the records of one key, and all of them in pieces. `dedup_ms`: for how long event ids
    are remembered."""

    of_key: ReadKey
    pieces: Callable[[Schema], Pieces]
    dedup_ms: int = DEDUP_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class Origin:
    """A source event of a derived one. `level` counts the patterns in between, `variables` are their variables."""

    level: int
    variables: tuple[str, ...]
    event_id: str
    event_time: datetime


@dataclass(frozen=True, slots=True)
class Produced:
    """The events that patterns have produced from a history; by match, `made` has the events that it has bound."""

    events: Decoded
    made: Mapping[str, Sequence[Mapping[str, Any]]]

    def with_key(self, records: KeyRecords, schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
        """Return the records of a key with its derived events."""
        batch, _ = route(self.events, domain, schema.columns())
        for_key = batch.take(np.asarray(pc.equal(batch.key, key)))
        return KeyRecords(concat_batches([records.batch, for_key]), records.poison)

    def origins(self, event_id: str, variables: tuple[str, ...]) -> list[Origin]:
        """Return the source events of an event that was bound as the last of these variables."""
        origins: list[Origin] = []
        for event in self.made.get(_match_of(event_id), ()):
            inner = (*variables, event["variable"])
            if _match_of(event["event_id"]) in self.made:
                origins += self.origins(event["event_id"], inner)
            else:
                origins.append(Origin(len(inner), inner, event["event_id"], event["event_time"]))
        return origins


def reads_produced(rule: DeployedRule, schema: Schema) -> list[str]:
    """Return the event types that the rule reads and that patterns produce."""
    read = {*rule.pattern.event_types, *(past.event_type for past in histories(rule.pattern))}
    return [e.name for e in schema.event_types if e.derived and e.name in read]


def producers_of(rules: GivenRules, names: Sequence[str]) -> list[str]:
    """Return the rules that produce these event types."""
    deployed = rules.deployment.rulebook.deployed()
    return sorted({rule.rule_id for rule in deployed if rule.pattern.produces in names})


def produce(rules: GivenRules, pieces: Pieces) -> Produced:
    """Match a history, level by level, and keep the derived events. Raises: SourceError."""
    deployment = rules.deployment
    schema = deployment.schema
    read_events, job, watermark_ms = _read(rules, pieces)
    produced: list[Decoded] = []
    tables: list[pa.Table] = []
    for programs in programs_by_level(deployment.rulebook, schema, rules.levels_count):
        events = concat_decoded(schema, [read_events, *produced])
        for domain, program in programs.items():
            output = MatchOutput(since_ms=int(read_events.time_ms.min()) if len(read_events) else TIME_MS_MAX, made=[])
            batch, _ = route(events, domain, schema.columns())
            match_events(program, None, without_repeats(job, batch)[0], watermark_ms, output, is_end=True)
            produced += [within_history(job, each) for each in output.produced]
            tables += output.made or []
    matches = {row["alert_id"]: row["events"] for table in tables for row in table.to_pylist()}
    return Produced(concat_decoded(schema, produced), matches)


def end_of(rules: GivenRules, pieces: Pieces) -> int:
    """Return the watermark at the end of a history, which takes reading it. Raises: SourceError."""
    return _read(rules, pieces)[2]


def _read(rules: GivenRules, pieces: Pieces) -> tuple[Decoded, Job, int]:
    """Return the events of a history, the job that replays it, and the watermark at its end."""
    now_ms = int(time.time() * 1_000)
    dedup_ms = DEDUP_MS_DEFAULT if pieces.dedup_ms is None else pieces.dedup_ms
    job = job_of(rules.deployment, Terms(until_ms=pieces.until_ms, dedup_ms=dedup_ms))
    decoded = [piece.decode().between(TIME_MS_MIN, job.latest_ms(now_ms) + 1) for piece in pieces.pieces]
    events = concat_decoded(job.schema, decoded)
    return events, job, watermark_at_end(job, int(events.time_ms.max(initial=TIME_MS_MIN)), now_ms)


def _match_of(event_id: str) -> str:
    """Return the id of the match that an event was made from; of another event something that no match has."""
    return event_id[-ALERT_ID_CHARS:] if event_id[-ALERT_ID_CHARS - 1 : -ALERT_ID_CHARS] == "~" else ""
