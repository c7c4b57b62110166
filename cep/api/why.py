"""An alert → its events; a rule and a key → the reason for a missing alert. In the words of `cep why`.

Tested by: tests/cli/test_why.py, tests/api/test_alerts.py
"""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.api.events import EventReader
from cep.api.replay import GivenRules, Produced, Terms, end_of, job_of, produce, producers_of, reads_produced
from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MAX
from cep.base.terminal import Terminal, new_table
from cep.columnar.decode import KEY_SEPARATOR, KeyDomain, key_of
from cep.columnar.tokens import tokens_of_key
from cep.lang.show import show_time
from cep.nfa.deployed import DeployedRule
from cep.sources.files import KeyRecords
from cep.sources.pieces import Period
from cep.step.duplicates import without_repeats
from cep.step.rejections import NO_REJECTIONS, Rejections, rejections_of_poison
from cep.testing.inquiry import Answer, MatchPath, World, suppression_reasons, why, why_not
from cep.testing.trace import fires_on_deadlines

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALERTS_SHOWN_MAX = 3
_WIDTH = 1_000
LateIds = Callable[[KeyDomain, str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to the question why there is an alert, or why not. It prints like `cep why`.

    `is_alert`: True if these rules and events give the alert. `rejections` counts the rejected records of the key.
    """

    is_alert: bool
    parts: tuple[Text | Table, ...]
    rejections: Rejections = NO_REJECTIONS

    def show(self, console: Console) -> None:
        """Print the answer."""
        for part in self.parts:
            console.print(part)

    def __str__(self) -> str:
        console = Terminal(file=io.StringIO(), width=_WIDTH, highlight=False, no_color=True, soft_wrap=True)
        with console.capture() as captured:
            self.show(console)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        console = Terminal(file=io.StringIO(), record=True, width=_WIDTH, highlight=False, soft_wrap=True)
        self.show(console)
        lines = console.export_html(inline_styles=True, code_format="{code}").splitlines()
        text = "\n".join(line.rstrip() for line in lines)
        return f'<pre style="overflow-x:auto">{text}</pre>'


def explain(rules: GivenRules, alert: dict[str, Any], reader: EventReader) -> Why:
    """Explain an alert: its events with the compared values, their source events, and the measures of the match.

    Raises: UsageError, SourceError.
    """
    rule = next((r for r in rules.versions(alert["rule_id"]) if r.version == alert["version"]), None)
    parts: list[Text | Table] = [*_head(alert), *_doc(rule)]
    if rule is None:
        parts.append(Text(f"{rules.display_name} has no version {alert['version']} of {alert['rule_id']} in force"))
        return Why(False, tuple(parts))
    if rule.content_hash != alert["content_hash"]:
        parts.append(Text("the rule's content has changed since: what follows is what it says now", style="yellow"))
    records, produced, rejections = _records(rules, rule, reader, alert["key"])
    answer = why(
        _world(rules, [rule], reader, to_the_end=bool(alert.get("unconfirmed"))),
        rule,
        records.batch,
        [e["event_id"] for e in alert["events"]],
        is_timeout=alert.get("kind") == "timeout",
    )
    parts += _poison(records)  # the key's unreadable records
    if not answer.matches:
        parts += [Text("these rules and events do not give this alert:", style="bold"), *_reasons(answer)]
        return Why(False, tuple(parts), rejections)
    path = answer.matches[0]
    return Why(True, (*parts, *_path(path), *_origins(path, produced)), rejections)


def explain_not(
    rules: GivenRules, rule_id: str, key: Sequence[str], reader: EventReader, at: str | None = None,
    late_ids: LateIds | None = None,
) -> Why:  # fmt: skip
    """Explain the missing alert of a rule for a key, around the event time `at` if that is given.

    `late_ids` returns the ids of events that came too late. Raises: UsageError, SourceError.
    """
    at_ms = None if at is None else _time(at)
    versions = rules.versions(rule_id)
    if not versions:
        return Why(False, (Text(rules.reason_against(rule_id)),))
    domain = versions[-1].pattern.key
    if len(key) != len(domain):
        fields = ", ".join(domain)
        raise UsageError(f"{rule_id} is keyed by {fields}: give --key {len(domain)} times, not {len(key)}")
    versions = [rule for rule in versions if rule.pattern.key == domain]
    deployment = rules.deployment
    values = tokens_of_key(deployment.schema, domain, key)[0]
    records, produced, rejections = _records(rules, versions[-1], reader, key_of(values))
    latest_ms = job_of(deployment, Terms(ahead_ms=reader.ahead_ms)).latest_ms(int(time.time() * 1_000))
    ahead = records.batch.time_ms > latest_ms
    records = replace(records, batch=records.batch.take(~ahead))
    late = frozenset[str]() if late_ids is None else late_ids(domain, key_of(values))
    world = _world(rules, versions, reader)
    answer = why_not(world, versions, records.batch, at_ms, late)
    shown = f"{rule_id} for {', '.join(f'{f} {v}' for f, v in zip(domain, values, strict=True))}"
    parts: list[Text | Table] = [*_poison(records), *_doc(versions[-1])]
    if ahead.any():
        parts.append(Text(f"set aside as dated ahead of the clock: {ahead.sum()} events of this key", style="yellow"))
    parts += [Text(line, style="yellow") for line in rules.set_aside(rule_id)]
    if not answer.matches:
        below = _below(rules, versions[-1])
        return Why(False, (*parts, Text(f"no alert of {shown}:", style="bold"), *_reasons(answer), *below), rejections)
    suppressed = suppression_reasons(deployment, domain, records.batch, late, world.end_ms)
    reasons = [suppressed.get((rule_id, p.version, tuple(step[1] for step in p.steps)), "") for p in answer.matches]
    out = [path for path, reason in zip(answer.matches, reasons, strict=True) if not reason]
    if not out:
        parts.append(Text(f"no alert of {shown}, what it finds is held back:", style="bold"))
    for path, reason in [pair for pair in zip(answer.matches, reasons, strict=True) if pair[1]][:_ALERTS_SHOWN_MAX]:
        parts += [Text(f"the match at {path.detected} is no alert: {reason}"), *_path(path), *_origins(path, produced)]
    if not out:
        return Why(False, tuple(parts), rejections)
    count = len(out)
    parts.append(Text(f"there {'is an alert' if count == 1 else f'are {count} alerts'} of {shown}:", style="bold"))
    for path in out[:_ALERTS_SHOWN_MAX]:
        parts += [*_path(path), *_origins(path, produced)]
    if answer.reasons:
        parts += [Text(f"what else began at {at}:", style="bold"), *_reasons(answer)]
    return Why(True, tuple(parts), rejections)


def _world(
    rules: GivenRules, versions: Sequence[DeployedRule], reader: EventReader, *, to_the_end: bool = False
) -> World:  # fmt: skip
    """Return the inputs of traces other than events. The whole history is read only if its end may matter."""
    deployment = rules.deployment
    end_ms = TIME_MS_MAX
    if not to_the_end and any(fires_on_deadlines(rule.pattern) for rule in versions):
        end_ms = end_of(rules, reader.pieces(deployment.schema), reader.ahead_ms)
    return World(deployment.schema, deployment.rulebook.lists.timelines(), end_ms)


def _records(
    rules: GivenRules, rule: DeployedRule, reader: EventReader, key: str
) -> tuple[KeyRecords, Produced | None, Rejections]:
    """Read a key's records, with repeated events once. If the rule reads derived events, match the whole history to get
    them. Return the records with the derived ones of the key, all derived events or None, and the rejected records."""
    schema, domain = rules.deployment.schema, rule.pattern.key
    records = reader.of_key(schema, domain, key)
    job = job_of(rules.deployment, Terms(period=Period(dedup_ms=reader.dedup_ms)))
    batch, reused_ids = without_repeats(job, records.batch)
    rejections = rejections_of_poison(len(records.batch), records.poison, reused_ids)  # poison: unreadable records
    records = replace(records, batch=batch)
    if not reads_produced(rule, schema):
        return records, None, rejections
    produced = produce(rules, reader.pieces(schema), reader.ahead_ms)
    return produced.with_derived_events(records, schema, domain, key), produced, rejections


def _below(loaded: GivenRules, rule: DeployedRule) -> list[Text]:
    """Name the rules that would have to find something first."""
    names = reads_produced(rule, loaded.deployment.schema)
    if not names:
        return []
    rules = ", ".join(producers_of(loaded, names))
    remark = f"produced by {rules}, of which this can be asked, too" if rules else "no rule in force produces them"
    return [Text(f"  {', '.join(names)}: {remark}")]


def _time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text} is no time; write it like 2026-03-01T10:05:00Z") from error
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


_REMARKS = {  # by a field of an alert: a sentence about the alert if the field is set
    "history_cut": "a condition asked for the past of a value of a sub-key of which events may be forgotten; its key "
    "has had more values than are remembered",
    "history_folded": "a condition looked back at a window of more events than are kept one by one; the older ones are "
    "summed up, and its far edge is rounded outwards by up to a 64th of the window, or not at all where it is one of "
    "the calendar",
    "unconfirmed": "the history ended before this was certain: a later event could still refute it. `--to-the-end` "
    "asked for such alerts",
    "flawed": "an event of the key had a value that cannot be read, in the 7 days before: a rule saw null in its "
    "place; letters with `null_fields` show it",
    "history_from": "a condition looked back further than events were known, which is from {} on",
}


def _head(alert: dict[str, Any]) -> list[Text]:
    """Write the head of an explanation: rule, key, time, message and warnings."""
    key = alert["key"].replace(KEY_SEPARATOR, ", ")
    heading = f"for {key} at {_shown(alert['detected_at'])}"
    line = f"{alert['rule_id']} version {alert['version']} {heading}, {alert['severity']}"
    parts = [Text(line, style="bold")]
    if alert["message"]:
        parts.append(Text(alert["message"]))
    since = _shown(alert.get("history_from") or "")
    parts += [Text(remark.format(since), style="yellow") for name, remark in _REMARKS.items() if alert.get(name)]
    return parts


def _shown(moment: datetime | str) -> str:
    """Return a time of an alert. In JSON lines it is text."""
    return show_time((moment - _EPOCH) // timedelta(milliseconds=1)) if isinstance(moment, datetime) else moment


def _doc(rule: DeployedRule | None) -> list[Text]:
    return [] if rule is None or not rule.pattern.doc else [Text(" ".join(rule.pattern.doc.split()), style="dim")]


def _path(path: MatchPath) -> list[Text | Table]:
    table = new_table(("event time", "event", "as", "what its condition saw"), overflow="fold")
    for step in path.steps:
        table.add_row(*(Text(cell) for cell in step))
    values = ", ".join(f"{name} = {value}" for name, value in path.measures)
    kind = "timeout" if path.is_timeout else "match"
    return [table, Text(f"{kind} at {path.detected} by version {path.version}" + (f": {values}" if values else ""))]


def _origins(path: MatchPath, produced: Produced | None) -> list[Text | Table]:
    """Show the source events from which rules derived the events of a match. `level`: how many rules are in between."""
    if produced is None:
        return []
    origins = [origin for _, event_id, name, _ in path.steps for origin in produced.origins(event_id, (name,))]
    if not origins:
        return []
    table = new_table(("event time", "event", "level", "as"), overflow="fold")
    for origin in origins:
        time = _shown(origin.event_time)
        table.add_row(*(Text(cell) for cell in (time, origin.event_id, str(origin.level), ".".join(origin.variables))))
    return [Text("made of the events of the source:", style="bold"), table]


def _reasons(answer: Answer) -> list[Text]:
    return [
        line for head, details in answer.reasons for line in (Text(f"  {head}"), *(Text(f"    {d}") for d in details))
    ]


def _poison(records: KeyRecords) -> list[Text]:
    flawed = [poison for poison in records.poison if poison.bad_values]
    aside = [poison for poison in records.poison if not poison.bad_values]
    lines = []
    for group, fault in ((aside, "cannot be decoded"), (flawed, "with a value that cannot be read and is null")):
        if group:
            count = f"{len(group)} record{'' if len(group) == 1 else 's'}"
            lines.append(f"{count} of this key {fault}, the first: {group[0].code}: {group[0].reason}")
    return [Text(line, style="yellow") for line in lines]
