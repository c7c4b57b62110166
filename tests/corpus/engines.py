"""Cases → the answers of each engine, in the words of the corpus.

`python -m tests.corpus.engines` compares `advance` with the corpus and prints the names of cases that differ; tests run
it in a process without compiled kernels.
Tested by: tests/corpus/test_corpus.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console

from cep.base.schema import Schema
from cep.demo.day import Watch
from cep.demo.in_process import InProcess, MemoryTopics
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.model.rule import HeartbeatRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.runners.embedded.commit import Sources
from cep.runners.embedded.replay import replay
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.corpus.cases import EVENT, KINDS, Case, CaseMatch, read_cases
from tests.engine.bridge import Found, batch_of, engine_answers, program_of
from tests.lang.common import bound_pattern
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event, Match, find_matches

_GROUPS = 4
_END = HeartbeatRecord(event_time="2026-01-01T00:00:00Z").to_json()


@dataclass(frozen=True)
class Answer:
    """The matches and time-outs of a case."""

    matches: list[CaseMatch]
    timeouts: list[CaseMatch]

    def sorted(self) -> Answer:
        """Return the answer in an order that all engines share."""
        return Answer(sorted(self.matches), sorted(self.timeouts))

    def __str__(self) -> str:
        return f"matches {[str(match) for match in self.matches]} time-outs {[str(match) for match in self.timeouts]}"


def expected(case: Case) -> Answer:
    return Answer(case.matches, case.timeouts)


@cache
def schema() -> Schema:
    return load_text(EVENT).schema


def pattern_of(case: Case) -> PatternIR:
    """Check the pattern of a case."""
    return bound_pattern(EVENT + case.pattern_text(), name=case.id)[0]


def events_of(case: Case) -> list[Event]:
    events = []
    for order, event in enumerate(case.events):
        kind = KINDS.index(event.name[0])
        fields: dict[str, Value] = {"id": event.id, "event_time": event.time_ms, "key": case.id, "kind": kind}
        fields["v"] = event.value
        events.append(Event(event.id, "e", event.time_ms, order, fields))
    return events


# ------------------------------------------------------------------------------------------ the oracle and advance


def by_oracle(case: Case) -> Answer:
    """Ask the brute-force oracle. Its matches are in the order of emission."""
    answer = find_matches(pattern_of(case), events_of(case), case.watermark_ms)
    timeouts = answer.timeouts if "timeouts" in case.given else ()
    return Answer([_of_oracle(case, match) for match in answer.matches], [_of_oracle(case, m) for m in timeouts])


def _of_oracle(case: Case, match: Match) -> CaseMatch:
    bound = ((variable, str(event_id)) for variable, event_id in match.bindings)
    return case.match_of(bound, match.detected_ms, match.measures)


def by_advance(case: Case) -> Answer:
    """Ask `advance` with all events in one call."""
    return _advanced(case, is_cut=False)


def by_advance_one_by_one(case: Case) -> Answer:
    """Ask `advance` with each event in a call of its own, and the watermark just before the next one."""
    return _advanced(case, is_cut=True)


def _advanced(case: Case, *, is_cut: bool) -> Answer:
    batch = batch_of(schema(), {case.id: events_of(case)})
    calls = [(batch, case.watermark_ms)]
    if is_cut:
        watermarks = [*(int(ms) - 1 for ms in batch.time_ms[1:]), case.watermark_ms]
        calls = [(batch.take(np.array([row])), watermark_ms) for row, watermark_ms in enumerate(watermarks)]
    answers = engine_answers(program_of(schema(), pattern_of(case)), calls)
    return Answer(_of_engine(case, answers.matches), _of_engine(case, answers.timeouts))


def _of_engine(case: Case, answers: Iterable[Found]) -> list[CaseMatch]:
    matches = []
    for _, bindings, detected_ms, measures in answers:
        bound = [(variable, event_id) for variable, ids in bindings for event_id in ids]
        matches.append(case.match_of(bound, detected_ms, dict(measures)))
    return sorted(matches)


# ------------------------------------------------------------------------------------ whole jobs, all cases at once


@dataclass(frozen=True)
class CorpusJob:
    """One job that has a rule for each case, and the events of each case under a key of its own."""

    deployment: Deployment
    records: list[UpsertRecord]
    job: Job
    lines: list[tuple[str, bytes]]

    @staticmethod
    def of(cases: Sequence[Case]) -> CorpusJob:
        """Deploy the cases."""
        records = [_record(case) for case in cases]
        deployment = deploy(records)
        assert not deployment.set_aside, deployment.set_aside
        lines = [(case.id, line) for case in cases for line in case.records()]
        lines.sort(key=lambda line: int(orjson.loads(line[1])["event_time"]))
        return CorpusJob(deployment, records, Job(deployment.schema, deployment.key_domains, _GROUPS), lines)

    def write_history(self, folder: Path) -> Path:
        """Write the events of all cases as JSON lines."""
        path = folder / "history.jsonl"
        path.write_bytes(b"".join(line + b"\n" for _, line in self.lines))
        return path


def _record(case: Case) -> UpsertRecord:
    return UpsertRecord(
        id=case.id, pattern=case.id, source=EVENT + case.pattern_text(), version=1, status="live", severity="low",
        owner="corpus", message="{key}",
    )  # fmt: skip


def of_alerts(cases: Sequence[Case], alerts: pa.Table) -> dict[str, Answer]:
    """Sort alerts by case. A rule may also match events of other cases; those alerts are left out."""
    answers = {case.id: Answer([], []) for case in cases}
    by_id = {case.id: case for case in cases}
    for alert in alerts.to_pylist():
        if alert["rule_id"] != alert["key"]:
            continue
        case, answer = by_id[alert["rule_id"]], answers[alert["rule_id"]]
        bound = [(event["variable"], event["event_id"]) for event in alert["events"]]
        detected_ms = round(alert["detected_at"].timestamp() * 1_000)
        is_timeout = alert["kind"] == "timeout"
        measures: dict[str, Any] = {} if is_timeout else orjson.loads(alert["measures"])
        (answer.timeouts if is_timeout else answer.matches).append(case.match_of(bound, detected_ms, measures))
    return {name: answer.sorted() for name, answer in answers.items()}


def by_embedded_replay(cases: Sequence[Case], folder: Path) -> dict[str, Answer]:
    """Replay all cases in this process."""
    corpus = CorpusJob.of(cases)
    pieces = read_pieces(corpus.write_history(folder), corpus.job.schema)
    return of_alerts(cases, replay(corpus.job, corpus.deployment.rulebook, pieces, 2).alerts)


def by_embedded_live(cases: Sequence[Case], folder: Path) -> dict[str, Answer]:
    """Run a live job over all cases in this process, events one after the other."""
    corpus, topics = CorpusJob.of(cases), MemoryTopics()
    for name in ("events", "control"):
        topics.create(name)
    platform = InProcess(
        folder, 2, Console(quiet=True), lambda: Sources(topics.reader("events"), topics.reader("control"))
    )
    watch = Watch()
    initial = [record.to_json() for record in corpus.records]
    with platform.live(corpus.job, initial, watch.take) as watch.reason_of_end:
        for line in corpus.lines:
            topics.send("events", [line])
        watch.wait("all events", lambda: watch.totals["records"] == len(corpus.lines))
        topics.send("control", [("heartbeat", _END)])
        watch.wait("the heartbeat", lambda: watch.totals["control_heartbeat"] > 0)
    return of_alerts(cases, pa.concat_tables(watch.alerts))


if __name__ == "__main__":
    assert numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    ASKED: tuple[Callable[[Case], Answer], ...] = (by_advance, by_advance_one_by_one)
    WRONG = [case.name for case in read_cases() for ask in ASKED if ask(case).sorted() != expected(case).sorted()]
    print("\n".join(WRONG))
    sys.exit(bool(WRONG))
