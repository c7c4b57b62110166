"""`cep why`: an alert → the events that led to it. `cep why-not`: a rule and a key → the reason for no alert.

It reads only the events of that key, without Spark.
Tested by: tests/cli/test_why.py
"""

import argparse
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from rich.console import Console

from cep.api.events import EventReader
from cep.api.replay import GivenRules
from cep.api.why import Why, explain, explain_not
from cep.base.errors import SourceError, UnreadableError, UsageError
from cep.base.files import open_file, read_lines
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal
from cep.cli.given_events import (
    add_events_arguments,
    add_period_arguments,
    checked_alert,
    given_events,
    given_period,
    tell_rejections,
)
from cep.cli.settings import add_secrets_argument, add_trust_arguments
from cep.cli.verbs import Parser
from cep.columnar.decode import KeyDomain
from cep.rulebook.signers import given_trust
from cep.sources.files import read_key

HELP = """\
Show how an alert came about: each event that it binds, the values in its condition, and the emitted values.

example:
  cep why --alerts alerts.parquet --alert 3f2a… --rules rules --events history/
  cep why --alerts alerts.jsonl --alert 3f2a… --rules rules --control control.jsonl --events history/
"""
HELP_NOT = """\
Say why a rule gives no alert for a key. The answer is the run that came furthest, and the reason why it stopped: a
condition, an event that closed it, a window that was over, an event that came too late, or a version that was not in
force. It may also be a suppressed alert: by shadow, snooze, suppression time, or another rule of the same group.

examples:
  cep why-not --rule card_testing --key card-17 --events history/
  cep why-not --rule card_testing --key card-17 --at 2026-03-01T10:05:00Z --events history/
  cep why-not --rule card_testing --key card-17 --control control.jsonl --events history/ --dead-letters checkpoint/
"""
_ID_CHARACTERS_MIN = 4
_READ = ("rule_id", "version", "severity", "key", "message", "events", "detected_at", "content_hash")
_PIPE_WIDTH = 1_000


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of `cep why`."""
    parser.declare("--alerts FILE", "the alerts that a job wrote: Parquet or JSON lines", required=True)
    parser.declare("--alert ID", "the alert's id, or the beginning of it", required=True)
    _add_shared_arguments(parser)


def add_arguments_not(parser: Parser) -> None:
    """Declare the arguments of `cep why-not`."""
    parser.declare("--rule RULE", "the rule's id", required=True)
    parser.declare("--key KEY", "the key; repeat it for each field of a key of several", required=True, action="append")
    parser.declare("--at TIME", "the event time at which you expected the alert, like 2026-03-01T10:05:00Z")
    parser.declare("--dead-letters PATH", "the dead letters of a live job, so that its late events are left out")
    _add_shared_arguments(parser)


def _add_shared_arguments(parser: Parser) -> None:
    """Declare the arguments that `cep why` and `cep why-not` share. A pattern feeds another with derived events."""
    parser.declare("--rules FOLDER", "rule files (*.toml), the first versions in force (default: rules)")
    parser.declare("--control FILE", "control records (JSON lines) that came after the rules")
    add_trust_arguments(parser)
    parser.declare(
        "--levels N",
        "the --levels of the live job, if patterns feed each other; so the same rules are refused",
        default=1,
    )
    add_events_arguments(parser)
    add_period_arguments(parser)
    add_secrets_argument(parser)


def run(options: argparse.Namespace, color: bool) -> int:
    """Show how an alert came about. Return 1 if these rules do not give it, or too many records were rejected."""
    use_secrets_file(options.secrets)
    alert = _alert(options.alerts, options.alert)
    rules = _rules(options)
    answer = explain(rules, alert, _past(options, rules))
    answer.show(_console(color))
    return max(int(not answer.is_alert), _tell_rejected(options, answer))


def _rules(options: argparse.Namespace) -> GivenRules:
    trust = given_trust(options.signers, options.root_key)
    return GivenRules.read(options.rules, options.control, options.levels, trust=trust)


def _past(options: argparse.Namespace, rules: GivenRules) -> EventReader:
    period = given_period(options)
    records = given_events(options, rules.deployment.schema)
    return EventReader(
        lambda schema, domain, key: period.cut_key(read_key(records.paths, schema, domain, key, records.mapping)),
        period.reader(records),
        period.dedup_ms,
    )


def _alert(path: Path, alert_id: str) -> dict[str, Any]:
    try:
        rows = [checked_alert(row, _READ) for row in _alert_rows(path, alert_id)]
    except (OSError, UnreadableError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as alerts: {error}; name a file that a job wrote") from error
    if len(rows) != 1:
        count_text = f"{len(rows)} alerts whose id begins with" if rows else "no alert"
        raise UsageError(f"{path} has {count_text} {alert_id}; give the whole id of one")
    return rows[0]


def _alert_rows(path: Path, alert_id: str) -> list[dict[str, Any]]:
    if len(alert_id) < _ID_CHARACTERS_MIN:
        raise UsageError(f"--alert {alert_id}: give at least {_ID_CHARACTERS_MIN} letters of the id")
    if path.suffix.lower() == ".parquet":
        with open_file(path) as file:
            table = pq.read_table(file)
        if "alert_id" not in table.schema.names:
            raise UsageError(f"{path} has no column alert_id: it holds no alerts")
        ids = table.column("alert_id").to_pylist()
        return [table.slice(row, 1).to_pylist()[0] for row, i in enumerate(ids) if str(i).startswith(alert_id)]
    alerts = _objects(line for line in read_lines(path) if alert_id.encode() in line)
    return [alert for alert in alerts if str(alert.get("alert_id", "")).startswith(alert_id)]


def _objects(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    values = [orjson.loads(line) for line in lines]
    if not all(isinstance(value, dict) for value in values):
        raise ValueError("a line of it is JSON, but no object")
    return values


def run_not(options: argparse.Namespace, color: bool) -> int:
    """Show the reason for no alert. Return 1 if there is an alert, or too many records of the key were rejected."""
    use_secrets_file(options.secrets)
    rules, late_ids = _rules(options), partial(_late_ids, options.dead_letters)
    answer = explain_not(rules, options.rule, options.key, _past(options, rules), options.at, late_ids)
    answer.show(_console(color))
    return max(int(answer.is_alert), _tell_rejected(options, answer))


def _late_ids(path: Path | None, domain: KeyDomain, key: str) -> frozenset[str]:
    """Read the ids of a key's events that a live job has set aside as late."""
    if path is None:
        return frozenset()
    if not path.exists():
        raise UsageError(f"--dead-letters {path} is not there; give the file or folder of a live job")
    late_ids: set[str] = set()
    for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
        try:
            dead_letters = _objects(line for line in read_lines(file) if b'"late"' in line)
        except (UnreadableError, ValueError) as error:
            raise SourceError(f"{file} cannot be read as dead letters: {error}") from error
        expected = {"code": "late", "key_domain": ",".join(domain), "key": key}
        late_ids |= {str(letter.get("event_id")) for letter in dead_letters if expected.items() <= letter.items()}
    return frozenset(late_ids)


def _tell_rejected(options: argparse.Namespace, answer: Why) -> int:
    if not answer.rejections.rejected_count:
        return 0
    return tell_rejections(answer.rejections, options.rejected_max, Terminal(stderr=True, highlight=False))


def _console(color: bool) -> Console:
    """Return the width of the terminal. A pipe lacks one: lines stay whole, so that they can be searched."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Terminal(highlight=False, no_color=not color, force_terminal=color or None, soft_wrap=True, width=width)
