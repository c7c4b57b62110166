"""`cep why`: an alert → the events that led to it. `cep why-not`: a rule and a key → what stopped the alert.

Only the events of that key are read, without Spark.
Tested by: tests/cli/test_why.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import SourceError, UsageError
from cep.base.schema import Schema
from cep.base.secrets import use_secrets_file
from cep.cli.configured import add_secrets_argument
from cep.cli.given_rules import GivenRules, add_trust_arguments
from cep.columnar.route import KEY_SEPARATOR, KeyDomain
from cep.columnar.tokens import tokens_of_key
from cep.lang.show import show_time
from cep.nfa.deployed import DeployedRule
from cep.rulebook.deploy import Deployment
from cep.rulebook.signers import given_trust
from cep.sources.files import KeyRecords, key_of, read_key
from cep.testing.inquiry import Answer, MatchPath, World, why, why_not
from cep.testing.suppressed import suppression_reasons

HELP = """\
Show how an alert came about: each event that it binds, what its condition saw, and what the match emits.

example:
  cep why --alerts alerts.parquet --alert 3f2a… --rules rules --events history/
  cep why --alerts alerts.jsonl --alert 3f2a… --rules rules --control control.jsonl --events history/
"""
HELP_NOT = """\
Say why a rule gives no alert for a key. The answer is the run that came furthest, and what stopped it: a condition, an
event that closed it, a window that was over, an event that came too late, or a version that was not in force. Or the
alert is held back: by shadow, snooze, suppression, or another rule of the same group.

examples:
  cep why-not --rule card_testing --key card-17 --events history/
  cep why-not --rule card_testing --key card-17 --at 2026-03-01T10:05:00Z --events history/
  cep why-not --rule card_testing --key card-17 --control control.jsonl --events history/ --dead-letters checkpoint/
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALERTS_SHOWN_MAX = 3
_ID_LETTERS_MIN = 4
_PIPE_WIDTH = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep why`."""
    parser.add_argument(
        "--alerts", type=Path, required=True, metavar="FILE", help="the alerts that a job wrote: Parquet or JSON lines"
    )
    parser.add_argument("--alert", required=True, metavar="ID", help="the alert's id, or the beginning of it")
    _common(parser)


def add_arguments_not(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep why-not`."""
    parser.add_argument("--rule", required=True, metavar="RULE", help="the rule's id")
    parser.add_argument(
        "--key",
        required=True,
        action="append",
        metavar="KEY",
        help="the key; repeat it for each field of a key of several",
    )
    parser.add_argument(
        "--at", metavar="TIME", help="the event time at which you expected the alert, like 2026-03-01T10:05:00Z"
    )
    parser.add_argument(
        "--dead-letters",
        type=Path,
        metavar="PATH",
        help="the dead letters of a live job, so that its late events are left out",
    )
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules", type=Path, metavar="FOLDER", help="rule files (*.toml), the first versions in force (default: rules)"
    )
    parser.add_argument(
        "--control", type=Path, metavar="FILE", help="control records (JSON lines) that came after the rules"
    )
    add_trust_arguments(parser)
    parser.add_argument(
        "--levels",
        type=int,
        default=1,
        metavar="N",
        help="the --levels of the live job, if patterns feed each other; so the same rules are refused",
    )
    parser.add_argument(
        "--events",
        type=Path,
        required=True,
        metavar="PATH",
        help="the history: a file or folder of Parquet, CSV or JSON lines",
    )
    add_secrets_argument(parser)


# ---------------------------------------------------------------------------------------------------------- why


def run(options: argparse.Namespace, color: bool) -> int:
    """Show how an alert came about. Return 1 if these rules and events do not give it.

    Raises: UsageError, SourceError.
    """
    use_secrets_file(options.secrets)
    console = _console(color)
    alert = _alert(options.alerts, options.alert)
    rules = GivenRules.read(
        options.rules, options.control, options.levels, trust=given_trust(options.signers, options.root_key)
    )
    rule = next((r for r in rules.versions(alert["rule_id"]) if r.version == alert["version"]), None)
    _print_head(alert, console)
    _print_doc(rule, console)
    if rule is None:
        console.print(Text(f"{rules.shown} has no version {alert['version']} of {alert['rule_id']} in force"))
        return 1
    if rule.content_hash != alert["content_hash"]:
        console.print(Text("the rule's content has changed since: what follows is what it says now", style="yellow"))
    _check_source(rule, rules.deployment.schema)
    records = read_key(options.events, rules.deployment.schema, rule.pattern.key, alert["key"])
    _print_poison(records, console)
    answer = why(
        _world(rules.deployment),
        rule,
        records.batch,
        [e["event_id"] for e in alert["events"]],
        is_timeout=alert.get("kind") == "timeout",
    )
    if not answer.matches:
        console.print(Text("these rules and events do not give this alert:", style="bold"))
        _print_reasons(answer, console)
        return 1
    _print_path(answer.matches[0], console)
    return 0


def _world(deployment: Deployment) -> World:
    return World(deployment.schema, deployment.rulebook.lists.timelines())


def _check_source(rule: DeployedRule, schema: Schema) -> None:
    """Refuse patterns that read produced events: no file has those. Raises: UsageError."""
    derived = [e.name for e in schema.event_types if e.derived and e.name in rule.pattern.event_types]
    if derived:
        raise UsageError(
            f"{rule.rule_id} reads events that other patterns produce ({', '.join(derived)}), which no file holds; "
            "ask about the rules that produce them"
        )


def _alert(path: Path, alert_id: str) -> dict[str, Any]:
    """Return the one alert whose id begins so."""
    try:
        rows = _alert_rows(path, alert_id)
    except (OSError, pa.ArrowInvalid, orjson.JSONDecodeError) as error:
        raise SourceError(f"{path} cannot be read as alerts: {error}") from error
    if len(rows) != 1:
        what = f"{len(rows)} alerts whose id begins with" if rows else "no alert"
        raise UsageError(f"{path} has {what} {alert_id}; give the whole id of one")
    return rows[0]


def _alert_rows(path: Path, alert_id: str) -> list[dict[str, Any]]:
    if len(alert_id) < _ID_LETTERS_MIN:
        raise UsageError(f"--alert {alert_id}: give at least {_ID_LETTERS_MIN} letters of the id")
    if path.suffix.lower() == ".parquet":
        table = pq.read_table(path)
        if "alert_id" not in table.schema.names:
            raise UsageError(f"{path} has no column alert_id: it holds no alerts")
        ids = table.column("alert_id").to_pylist()
        return [table.slice(row, 1).to_pylist()[0] for row, i in enumerate(ids) if i.startswith(alert_id)]
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if alert_id.encode() in line]
    return [alert for alert in lines if str(alert.get("alert_id", "")).startswith(alert_id)]


# ------------------------------------------------------------------------------------------------------ why not


def run_not(options: argparse.Namespace, color: bool) -> int:
    """Show what stopped an alert. Return 1 if there is one after all. Raises: UsageError, SourceError."""
    use_secrets_file(options.secrets)
    console = _console(color)
    rules = GivenRules.read(
        options.rules, options.control, options.levels, trust=given_trust(options.signers, options.root_key)
    )
    at_ms = None if options.at is None else _time(options.at)
    versions = rules.versions(options.rule)
    if not versions:
        console.print(Text(rules.reason_against(options.rule)))
        return 0
    domain = versions[-1].pattern.key
    if len(options.key) != len(domain):
        fields = ", ".join(domain)
        raise UsageError(f"{options.rule} is keyed by {fields}: give --key {len(domain)} times, not {len(options.key)}")
    versions = [rule for rule in versions if rule.pattern.key == domain]
    _check_source(versions[-1], rules.deployment.schema)
    parts = tokens_of_key(rules.deployment.schema, domain, options.key)[0]
    key = key_of(parts)
    records = read_key(options.events, rules.deployment.schema, domain, key)
    _print_poison(records, console)
    late = _late_ids(options.dead_letters, domain, key)
    answer = why_not(_world(rules.deployment), versions, records.batch, at_ms, late)
    shown = f"{options.rule} for {', '.join(f'{f} {v}' for f, v in zip(domain, parts, strict=True))}"
    _print_doc(versions[-1], console)
    for line in rules.set_aside(options.rule):
        console.print(Text(line, style="yellow"))
    if answer.matches:
        suppressed = suppression_reasons(rules.deployment, domain, records.batch, late)
        reasons = [
            suppressed.get((options.rule, p.version, tuple(step[1] for step in p.steps)), "") for p in answer.matches
        ]
        out = [path for path, reason in zip(answer.matches, reasons, strict=True) if not reason]
        if not out:
            console.print(Text(f"no alert of {shown}, what it finds is held back:", style="bold"))
        for path, reason in [pair for pair in zip(answer.matches, reasons, strict=True) if pair[1]][:_ALERTS_SHOWN_MAX]:
            console.print(Text(f"the match at {path.detected} is no alert: {reason}"))
            _print_path(path, console)
        if not out:
            return 0
        count = len(out)
        console.print(Text(f"there {'is an alert' if count == 1 else f'are {count} alerts'} of {shown}:", style="bold"))
        for path in out[:_ALERTS_SHOWN_MAX]:
            _print_path(path, console)
        if answer.reasons:
            console.print(Text(f"what else began at {options.at}:", style="bold"))
            _print_reasons(answer, console)
        return 1
    console.print(Text(f"no alert of {shown}:", style="bold"))
    _print_reasons(answer, console)
    return 0


def _late_ids(path: Path | None, domain: KeyDomain, key: str) -> frozenset[str]:
    """Read the ids of a key's events that a live job has set aside as late."""
    if path is None:
        return frozenset()
    if not path.exists():
        raise UsageError(f"--dead-letters {path} is not there; give the file or folder of a live job")
    late_ids: set[str] = set()
    for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
        try:
            dead_letters = [orjson.loads(line) for line in file.read_bytes().splitlines() if b'"late"' in line]
        except (OSError, orjson.JSONDecodeError) as error:
            raise SourceError(f"{file} cannot be read as dead letters: {error}") from error
        asked = {"code": "late", "key_domain": ",".join(domain), "key": key}
        late_ids |= {str(letter.get("event_id")) for letter in dead_letters if asked.items() <= letter.items()}
    return frozenset(late_ids)


def _time(text: str) -> int:
    """ISO 8601, in UTC if it names no zone, as milliseconds."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text} is no time; write it like 2026-03-01T10:05:00Z") from error
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


# ----------------------------------------------------------------------------------------------------- printing


def _console(color: bool) -> Console:
    """Return the width of the terminal. A pipe has none: lines stay whole, so that they can be searched."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, no_color=not color, force_terminal=color or None, soft_wrap=True, width=width)


def _print_head(alert: dict[str, Any], console: Console) -> None:
    key = alert["key"].replace(KEY_SEPARATOR, ", ")
    at = f"for {key} at {_shown(alert['detected_at'])}"
    line = f"{alert['rule_id']} version {alert['version']} {at}, {alert['severity']}"
    console.print(Text(line, style="bold"))
    if alert["message"]:
        console.print(Text(alert["message"]))
    if alert.get("history_cut"):
        sentence = (
            "a condition asked for the past of a value of a sub-key of which events may be forgotten; "
            "its key has had more values than are remembered"
        )
        console.print(Text(sentence, style="yellow"))
    if alert.get("history_folded"):
        sentence = (
            "a condition looked back at a window of more events than are kept one by one; "
            "the older ones are summed up, and its far edge is rounded outwards by up to a 64th of the window, "
            "or not at all where it is one of the calendar"
        )
        console.print(Text(sentence, style="yellow"))
    if alert.get("history_from"):
        sentence = (
            f"a condition looked back further than events were known, which is from {_shown(alert['history_from'])} on"
        )
        console.print(Text(sentence, style="yellow"))


def _shown(moment: datetime | str) -> str:
    """Return a time of an alert. In JSON lines it is text."""
    return show_time((moment - _EPOCH) // timedelta(milliseconds=1)) if isinstance(moment, datetime) else moment


def _print_doc(rule: DeployedRule | None, console: Console) -> None:
    """Return the documentation of the pattern."""
    if rule is not None and rule.pattern.doc:
        console.print(Text(" ".join(rule.pattern.doc.split()), style="dim"))


def _print_path(path: MatchPath, console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("event time", "event", "as", "what its condition saw"):
        table.add_column(title, overflow="fold")
    for step in path.steps:
        table.add_row(*(Text(cell) for cell in step))
    console.print(table)
    values = ", ".join(f"{name} = {value}" for name, value in path.measures)
    kind = "timeout" if path.is_timeout else "match"
    console.print(Text(f"{kind} at {path.detected} by version {path.version}" + (f": {values}" if values else "")))


def _print_reasons(answer: Answer, console: Console) -> None:
    for head, details in answer.reasons:
        console.print(Text(f"  {head}"))
        for line in details:
            console.print(Text(f"    {line}"))


def _print_poison(records: KeyRecords, console: Console) -> None:
    count = len(records.poison)
    if count:
        first: Sequence[str] = (records.poison[0].code, records.poison[0].reason)
        line = f"{count} record{'' if count == 1 else 's'} of this key cannot be decoded, the first: {': '.join(first)}"
        console.print(Text(line, style="yellow"))
