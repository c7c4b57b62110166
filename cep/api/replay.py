"""Rules in force and a finite history → the alerts, the suppressed alerts, and the rejected records.

The verbs and the library call the same functions here, so that they give the same bytes.

A history contains no derived events. So a question about a rule that reads them matches the whole history, not one key:

    raw events ─▶ level 1 ─▶ derived events ─▶ level 2 ─▶ …        every match that produces keeps its bound events

Tested by: tests/api/test_match.py, tests/cli/test_replay.py, tests/cli/test_why.py, tests/api/test_alerts.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import UsageError
from cep.base.limits import AHEAD_MS_DEFAULT, DEDUP_MS_DEFAULT, KEY_GROUPS_DEFAULT, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.secrets import secret_keys
from cep.base.text import hint_at_nearest
from cep.columnar.batch import concat_batches
from cep.columnar.decode import Decoded, KeyDomain, concat_decoded, route
from cep.engine.alerts import ALERT_ID_CHARS
from cep.lang.explain.render import render_text
from cep.lang.load import bundle_source, load_files
from cep.lang.walk import histories
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, RetireRecord, UpsertRecord, name_problem
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import GivenList, given_lists
from cep.rulebook.compatible import KeyDomains, checked_text
from cep.rulebook.deploy import Deployment, deploy, deploy_to_job
from cep.rulebook.files import list_record, read_control
from cep.rulebook.rulebook import Rulebook, levels_needed
from cep.rulebook.suppression import Policies, Suppression, count_suppressed, suppress_alerts
from cep.rulebook.trust import Trust
from cep.runners.compiling import announced_compiling
from cep.runners.embedded import replay as embedded
from cep.runners.job import read_folder
from cep.runners.output import Replayed, replay_to_the_end
from cep.sources.files import KeyRecords
from cep.sources.pieces import ALWAYS, Period, Pieces
from cep.step.dead_letters import under_rules
from cep.step.duplicates import without_repeats
from cep.step.history_end import watermark_at_end, within_history
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level, refusal_dead_letters

_USUAL = Path("rules")
_OWNER_CHARS = 100


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The rules of a folder and the changes that came after, as they would be deployed in a job of `levels_count`."""

    display_name: str
    records: tuple[ControlRecord, ...]
    problems: tuple[str, ...]
    deployment: Deployment
    levels_count: int
    lists: ListStore

    @staticmethod
    def read(
        folder: Path | None,
        control: Path | None,
        levels_count: int = 1,
        keys: KeyDomains | None = None,
        trust: Trust | None = None,
    ) -> GivenRules:
        """Read the folder of rules that the job begins with, and the file of control records that came later.

        Without a folder the job begins with the control records; without both, the folder is `rules`. The job has at
        least `levels_count` levels: a rule that reads events of another is a level above it. `keys` are the keys that
        later rules may have in addition to the first rules' keys; None: any. With `trust` a change must be signed.

        Raises: UsageError for a missing or unreadable folder.
        """
        if folder is None and control is None:
            if not _USUAL.is_dir():
                raise UsageError(f"give --rules, --control, or both; there is no folder {_USUAL} here")
            folder = _USUAL
        first: list[ControlRecord] = []
        later: list[ControlRecord] = []
        problems: list[str] = []
        lists = ListStore()
        if folder is not None:
            if not folder.is_dir():
                raise UsageError(f"--rules {folder} is not a folder")
            first, problems = read_folder(folder, lists, trust)
        if control is not None:
            later, more = read_control(control)
            problems += more
        if folder is None:  # the job begins with the control records
            first, later = later, []
        deployment = deploy(first, lists, trust)
        levels_count = max(levels_count, levels_needed(deployment.rulebook.deployed()))
        if later:
            deployment = deploy_to_job(deployment, later, keys, levels_count)
        display_name = " with ".join(str(path) for path in (folder, control) if path is not None)
        return GivenRules(display_name, (*first, *later), tuple(problems), deployment, levels_count, lists)

    @staticmethod
    def of_patterns(source: str, display_name: str, lists: Sequence[GivenList] = ()) -> GivenRules:
        """Make each pattern of a text a rule that is live at all times. The text compiles, and imports nothing.

        Raises: UsageError for a name that no rule can have.
        """
        store = ListStore()
        checked = checked_text(source)
        named = [("pattern", name) for name in checked.patterns] + [("list", each.name) for each in lists]
        problems = [problem for noun, name in named if (problem := name_problem(noun, name)) is not None]
        if problems:
            raise UsageError("; ".join(problems))
        records = [
            UpsertRecord(
                id=name, version=1, pattern=name, status="live", severity="medium", owner=display_name[:_OWNER_CHARS],
                message=name, source=source,
            )
            for name in checked.patterns
        ]  # fmt: skip
        list_records = [list_record(each, store) for each in lists]
        deployment = deploy([*list_records, *records], store)
        levels_count = levels_needed(deployment.rulebook.deployed())  # more than 1 if rules read events of other rules
        return GivenRules(display_name, (*list_records, *records), (), deployment, levels_count, store)

    @staticmethod
    def of_file(path: Path) -> GivenRules:
        """Make a rule of each pattern of a file, with its own parameters. Raises: UsageError with all mistakes."""
        checked = load_files([path])
        lists = given_lists(checked)
        mistakes = [each for each in (*checked.diagnostics, *lists.diagnostics) if each.is_error]
        if mistakes:
            raise UsageError(f"{path} has mistakes:\n{render_text(mistakes, checked.sources)}")
        if not checked.patterns:
            schema = checked.schema
            return GivenRules(str(path), (), (), Deployment(schema, Rulebook(schema, None), ()), 1, ListStore())
        return GivenRules.of_patterns(bundle_source(path), str(path), tuple(lists.lists.values()))

    def newest(self, rule_id: str) -> UpsertRecord:
        """Return the record of the highest version. Raises: UsageError for an unknown rule."""
        records = [each for each in self.records if isinstance(each, UpsertRecord) and each.id == rule_id]
        if not records:
            raise UsageError(self.reason_against(rule_id))
        return max(records, key=lambda each: each.version)

    def versions(self, rule_id: str) -> list[DeployedRule]:
        """Return the versions that are in force at some time, the oldest first."""
        return [rule for rule in self.deployment.rulebook.deployed() if rule.rule_id == rule_id]

    def set_aside(self, rule_id: str) -> list[str]:
        """List the versions of a rule that were refused, with the reasons."""
        return [
            f"{rule_id} version {rule.version} is set aside: {rule.reason}"
            + "".join(f"\n  {d.code} {d.message}" for d in rule.diagnostics)
            for rule in self.deployment.set_aside
            if rule.rule_id == rule_id
        ]

    def reason_against(self, rule_id: str) -> str:
        """Return why no version of a rule is in force. Raises: UsageError for an unknown rule."""
        set_aside = self.set_aside(rule_id)
        if set_aside:
            return "\n".join(set_aside)
        for problem in self.problems:
            if f"/{rule_id}.toml: " in f"/{problem}":
                return f"{rule_id} cannot be read: {problem}"
        changes = [r for r in self.records if isinstance(r, UpsertRecord | RetireRecord)]
        for record in reversed(changes):
            if record.id == rule_id:
                status = "retired" if isinstance(record, RetireRecord) else record.status
                return f"{rule_id} version {record.version} is {status}: it is not matched"
        hint = hint_at_nearest(rule_id, [r.id for r in changes], "; did you mean {}?")
        raise UsageError(f"{self.display_name} has no rule {rule_id}{hint}")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a replay: threads, key groups, how far ahead of the clock an event may be dated (None: as far as it
    likes), and the period in which events count."""

    cores: int = 2
    key_groups: int = KEY_GROUPS_DEFAULT
    ahead_ms: int | None = AHEAD_MS_DEFAULT
    period: Period = ALWAYS


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished replay. `replayed.alerts` are the alerts to send, `suppression` has the others with their reasons."""

    replayed: Replayed
    suppression: Suppression


def job_of(deployment: Deployment, terms: Terms, levels_count: int = 1) -> Job:
    """Describe the job that replays these rules in `levels_count` levels or more: rules read events of lower levels."""
    period = terms.period
    return Job(
        deployment.schema,
        deployment.key_domains,
        terms.key_groups,
        dedup_ms=period.dedup_ms,
        levels_count=max(levels_count, levels_needed(deployment.rulebook.deployed())),
        begins_ms=period.since_ms,
        ends_ms=period.until_ms,
        ahead_ms=terms.ahead_ms,
        to_the_end=period.to_the_end,
    ).begin()  # with a new key for hashes of event ids


def finish(rulebook: Rulebook, replayed: Replayed, refused: Sequence[bytes]) -> Outcome:
    """Suppress alerts, count them, and add the letters of refused control records. Adds to `replayed.counters`."""
    suppression = suppress_alerts(replayed.alerts, Policies.of(rulebook), {})
    replayed.counters.update(count_suppressed(suppression))
    replayed.counters["control_refused"] += len(refused)
    dead_letters = (*refused, *under_rules(replayed.dead_letters, rulebook.epoch, rulebook.content_hash))
    return Outcome(replace(replayed, alerts=suppression.alerts, dead_letters=dead_letters), suppression)


def matches(rules: GivenRules, pieces_of: Callable[[Schema], Pieces], terms: Terms) -> Replayed:
    """Match the history that `pieces_of` reads. No alert is suppressed yet. Raises: UsageError, SourceError."""
    deployment = rules.deployment
    if deployment.schema.protected:
        secret_keys()  # for its error: without keys for the protected fields, fail before the replay
    job = job_of(deployment, terms)
    cpus = pa.cpu_count()  # the replay changes it for the caller's whole process
    try:
        with announced_compiling():
            return replay_to_the_end(  # maybe twice, to learn which alerts are certain
                job, lambda each: embedded.replay(each, deployment.rulebook, pieces_of(each.schema), terms.cores)
            )
    finally:
        pa.set_cpu_count(cpus)


def replay(rules: GivenRules, pieces_of: Callable[[Schema], Pieces], terms: Terms) -> Outcome:
    """Match a history and suppress alerts as the rules say. Raises: UsageError, SourceError."""
    deployment = rules.deployment
    replayed = matches(rules, pieces_of, terms)
    return finish(deployment.rulebook, replayed, refusal_dead_letters(deployment.refused))


@dataclass(frozen=True, slots=True)
class Origin:
    """A source event of a derived one. `level` counts the patterns in between, `variables` are their variables."""

    level: int
    variables: tuple[str, ...]
    event_id: str
    event_time: datetime


@dataclass(frozen=True, slots=True)
class Produced:
    """The events that rules derived from a history. `bound_by_match`: by the id of a match, its bound events."""

    events: Decoded
    bound_by_match: Mapping[str, Sequence[Mapping[str, Any]]]

    def with_derived_events(self, records: KeyRecords, schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
        """Return the records of a key, with the derived events of the key added."""
        batch, _ = route(self.events, domain, schema.columns())  # domain: the fields that make the key of an event
        for_key = batch.take(np.asarray(pc.equal(batch.key, key)))
        return KeyRecords(concat_batches([records.batch, for_key]), records.poison)  # poison: unreadable records

    def origins(self, event_id: str, variables: tuple[str, ...]) -> list[Origin]:
        """Trace an event back to its source events. `variables` is the path to it: the last variable has bound it."""
        origins: list[Origin] = []
        for event in self.bound_by_match.get(_producing_match_id(event_id), ()):
            path = (*variables, event["variable"])
            if _producing_match_id(event["event_id"]) in self.bound_by_match:  # it is a derived event, too
                origins += self.origins(event["event_id"], path)
            else:
                origins.append(Origin(len(path), path, event["event_id"], event["event_time"]))
        return origins


def reads_produced(rule: DeployedRule, schema: Schema) -> list[str]:
    """Return the event types that the rule reads and that patterns produce."""
    read = {*rule.pattern.event_types, *(past.event_type for past in histories(rule.pattern))}
    return [e.name for e in schema.event_types if e.derived and e.name in read]


def producers_of(rules: GivenRules, names: Sequence[str]) -> list[str]:
    """Return the rules that produce these event types."""
    deployed = rules.deployment.rulebook.deployed()
    return sorted({rule.rule_id for rule in deployed if rule.pattern.produces in names})


def produce(rules: GivenRules, pieces: Pieces, ahead_ms: int | None) -> Produced:
    """Return the events that rules derive from a history. A rule that reads them runs at a later level, after their
    producers, so each level is matched in turn. Raises: SourceError."""
    deployment = rules.deployment
    schema = deployment.schema
    source_events, job, watermark_ms = _read(rules, pieces, ahead_ms)
    begin_ms = int(source_events.time_ms.min()) if len(source_events) else TIME_MS_MAX  # of the history
    produced: list[Decoded] = []
    tables: list[pa.Table] = []  # matches that derived an event, with the events that they bound
    for programs in programs_by_level(deployment.rulebook, schema, rules.levels_count):
        events = concat_decoded(schema, [source_events, *produced])
        for domain, program in programs.items():
            output = MatchOutput(since_ms=begin_ms, produced_matches=[])
            batch, _ = route(events, domain, schema.columns())
            match_events(program, None, without_repeats(job, batch)[0], watermark_ms, output, is_end=True)
            produced += [within_history(job, each) for each in output.produced]  # without events after its end
            tables += output.produced_matches or []
    bound_by_match = {row["alert_id"]: row["events"] for table in tables for row in table.to_pylist()}
    return Produced(concat_decoded(schema, produced), bound_by_match)


def end_of(rules: GivenRules, pieces: Pieces, ahead_ms: int | None) -> int:
    """Return the watermark at the end of a history, which takes reading it. Raises: SourceError."""
    return _read(rules, pieces, ahead_ms)[2]


def _read(rules: GivenRules, pieces: Pieces, ahead_ms: int | None) -> tuple[Decoded, Job, int]:
    """Return the events of a history, the job that replays it, and the watermark at its end."""
    now_ms = int(time.time() * 1_000)
    dedup_ms = DEDUP_MS_DEFAULT if pieces.dedup_ms is None else pieces.dedup_ms
    terms = Terms(ahead_ms=ahead_ms, period=Period(until_ms=pieces.until_ms, dedup_ms=dedup_ms))
    job = job_of(rules.deployment, terms)
    decoded = [piece.decode().between(TIME_MS_MIN, job.latest_ms(now_ms) + 1) for piece in pieces.pieces]
    events = concat_decoded(job.schema, decoded)
    return events, job, watermark_at_end(job, int(events.time_ms.max(initial=TIME_MS_MIN)), now_ms)


def _producing_match_id(event_id: str) -> str:
    """Return the id of the match that derived an event; "" for an event of the source."""
    return event_id[-ALERT_ID_CHARS:] if event_id[-ALERT_ID_CHARS - 1 : -ALERT_ID_CHARS] == "~" else ""
