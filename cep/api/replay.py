"""Rules in force and a finite history → the alerts, the suppressed alerts, and the rejected records.

The verbs and the library call the same functions here, so that they give the same bytes.
Tested by: tests/api/test_match.py, tests/cli/test_replay.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cep.api.given import GivenRules
from cep.base.limits import AHEAD_MS_DEFAULT, DEDUP_MS_DEFAULT, KEY_GROUPS_DEFAULT, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.secrets import secret_keys
from cep.rulebook.deploy import Deployment
from cep.rulebook.levels import levels_needed
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import Policies, Suppression, count_suppressed, suppress_alerts
from cep.runners.compiling import announced_compiling
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.to_the_end import replay_to_the_end
from cep.sources.pieces import Pieces
from cep.step.dead_letters import under_rules
from cep.step.job import Job
from cep.step.rules import refusal_dead_letters


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a replay: threads, for how long event ids are remembered, how far ahead of the clock an event may be
    dated (None: as far as it likes), from when to when events count, and whether all windows close at the end."""

    cores: int = 2
    key_groups: int = KEY_GROUPS_DEFAULT
    dedup_ms: int = DEDUP_MS_DEFAULT
    ahead_ms: int | None = AHEAD_MS_DEFAULT
    since_ms: int = TIME_MS_MIN
    until_ms: int = TIME_MS_MAX
    to_the_end: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished replay. `replayed.alerts` are the alerts to send, `suppression` has the others with their reasons."""

    replayed: Replayed
    suppression: Suppression


def job_of(deployment: Deployment, terms: Terms, levels_count: int = 1) -> Job:
    """Describe the job that replays these rules, with at least so many levels."""
    return Job(
        deployment.schema,
        deployment.key_domains,
        terms.key_groups,
        dedup_ms=terms.dedup_ms,
        levels_count=max(levels_count, levels_needed(deployment.rulebook.deployed())),
        begins_ms=terms.since_ms,
        ends_ms=terms.until_ms,
        ahead_ms=terms.ahead_ms,
        to_the_end=terms.to_the_end,
    ).begin()


def finish(rulebook: Rulebook, replayed: Replayed, refused: Sequence[bytes]) -> Outcome:
    """Suppress alerts, count them, and add the letters of refused control records. Adds to `replayed.counters`."""
    suppression = suppress_alerts(replayed.alerts, Policies.of(rulebook), {})
    replayed.counters.update(count_suppressed(suppression))
    replayed.counters["control_refused"] += len(refused)
    dead_letters = (*refused, *under_rules(replayed.dead_letters, rulebook.epoch, rulebook.content_hash))
    return Outcome(replace(replayed, alerts=suppression.alerts, dead_letters=dead_letters), suppression)


def matches(rules: GivenRules, pieces_of: Callable[[Schema], Pieces], terms: Terms) -> Replayed:
    """Match a history in this process, before anything is suppressed. Raises: UsageError, SourceError."""
    deployment = rules.deployment
    if deployment.schema.protected:
        secret_keys()
    job = job_of(deployment, terms)
    cpus = pa.cpu_count()  # the replay sets it for the whole process, which is the caller's
    try:
        with announced_compiling():
            return replay_to_the_end(
                job, lambda one: embedded.replay(one, deployment.rulebook, pieces_of(one.schema), terms.cores)
            )
    finally:
        pa.set_cpu_count(cpus)


def replay(rules: GivenRules, pieces_of: Callable[[Schema], Pieces], terms: Terms) -> Outcome:
    """Match a history and suppress alerts as the rules say. Raises: UsageError, SourceError."""
    deployment = rules.deployment
    replayed = matches(rules, pieces_of, terms)
    return finish(deployment.rulebook, replayed, refusal_dead_letters(deployment.refused))
