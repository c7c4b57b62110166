"""`cep rules shadow report`: the alerts of a version in shadow and of the live one → gained, lost, volume, cost.

Both runners write the same files into a job's folder: rules, totals, and alerts of the shadow.
Tested by: tests/cli/test_rules.py, tests/cli/test_quality.py
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from rich.table import Table

from cep.base.errors import SourceError, StateCorruptError, UnreadableError, UsageError
from cep.base.files import read_document, read_lines
from cep.base.limits import AHEAD_MS_DEFAULT, EVENT_TIME_MS_MIN, TIME_MS_MIN
from cep.base.terminal import Terminal, new_table
from cep.base.text import utc_text
from cep.cli.diff import print_changes
from cep.cli.given_events import checked_alert
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.rulebook.difference import compare
from cep.rulebook.suppression import SHADOW
from cep.runners.live_checkpoint import read_progress
from cep.runners.rule_output import STATUS_FILE, SUPPRESSED_FOLDER
from cep.sinks.files import read_alerts
from cep.sinks.kinds import KAFKA
from cep.sources.kafka import KafkaSettings, latest_offsets, offsets_of, read_range
from cep.sources.offsets import OffsetRange

_COLUMNS = ("rule_id", "key", "message", "detected_at", "events")
_READ = (*_COLUMNS, "version", "match_start")
HELP = """\
Compare the alerts of a shadow version with the alerts of the live version of the rule, since the shadow's start. The
shadow's alerts are in the job's checkpoint folder. The live alerts are where the job sends them: in a folder of JSON
lines (`--alerts FOLDER`) or in a topic (`--alerts kafka:TOPIC`).

The cost is the number of open runs to which an event was offered, counted by the job while both versions ran. `cep
diff` gives it in microseconds.

examples:
  cep rules shadow report card_testing --checkpoint /var/lib/cep/job --alerts alerts
  cep rules shadow report card_testing --checkpoint /var/lib/cep/job --alerts kafka:alerts --conf cep.toml
"""


def add_arguments(parser: Parser) -> None:
    """Declare the verb below `cep rules shadow` and its arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    report = verbs.add_parser("report", help="alerts gained and lost, volume, and cost")
    report.declare("rule RULE", "the rule's id")
    report.declare("--checkpoint FOLDER", "of the job", required=True)
    report.declare("--alerts WHERE", "where the job sends them: FOLDER, kafka:TOPIC", required=True)
    add_setting_arguments(report, "kafka")
    report.declare("--examples N", "alerts shown of each kind (3)", default=3)


def run(options: argparse.Namespace) -> int:
    """Report what a shadow version would change. Raises: UsageError if the job lacks it."""
    console = Terminal(highlight=False, soft_wrap=True)
    from_ms, version = _newest_shadow(options.checkpoint, options.rule)
    suppressed = options.checkpoint / SUPPRESSED_FOLDER
    shadow = _compared(_shadow_alerts(suppressed), options.rule, suppressed)
    shadow = [alert for alert in shadow if alert["version"] == version]
    live = _compared(_sent_alerts(options, from_ms), options.rule, options.alerts)
    # The shadow could not have found a live match that began before the shadow started.
    live = [alert for alert in live if alert["match_start_ms"] >= from_ms]
    comparison = compare(_table(live), _table(shadow))
    console.print(f"{options.rule}: shadow version {version} {len(shadow):,} alerts, live {len(live):,}", markup=False)
    console.print(_costs(options.checkpoint, options.rule))
    print_changes(comparison, options.examples, console)
    return 0


def _costs(checkpoint: Path, rule_id: str) -> Table:
    """List the cost of each version of the rule since it has had a shadow."""
    _, totals = read_progress(checkpoint)
    table = new_table((), ("version", "events", "run steps", "steps an event"))
    prefix = f"rule_events[{rule_id}@"
    versions = sorted(int(name[len(prefix) : -1]) for name in totals if name.startswith(prefix))
    for version in versions:
        events, steps = (totals[f"{name}[{rule_id}@{version}]"] for name in ("rule_events", "rule_steps"))
        table.add_row(str(version), f"{events:,}", f"{steps:,}", f"{steps / events:.3f}" if events else "–")
    return table


def _newest_shadow(checkpoint: Path, rule_id: str) -> tuple[int, int]:
    """Return (event time of its start, version) of the rule's newest version in shadow, which sends no alerts."""
    path = checkpoint / STATUS_FILE
    if not path.exists():
        raise UsageError(f"{path} is not there; name the checkpoint folder of a job that has run")
    try:
        versions = [
            (TIME_MS_MIN if r["from_ms"] is None else int(r["from_ms"]), int(r["version"]))
            for r in read_document(path)["rules"]
            if r["rule_id"] == rule_id and r["status"] == SHADOW
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateCorruptError(
            f"{path} does not say which rules the job has ({error!r}); start it, and it is written anew"
        ) from error
    if not versions:
        raise UsageError(f'the job has no version of {rule_id} in shadow; publish one with `status = "shadow"`')
    return max(versions, key=lambda pair: pair[1])


def _shadow_alerts(suppressed: Path) -> Iterator[Any]:
    for file in sorted(suppressed.glob("batch-*.jsonl")):
        try:
            lines = [orjson.loads(line) for line in read_lines(file)]
            yield from [line["alert"] for line in lines if line["held"] == SHADOW]
        except (UnreadableError, KeyError, TypeError, ValueError) as error:
            raise StateCorruptError(f"{file} has a line that is no suppressed alert ({error!r}); restore it") from error


def _compared(alerts: Iterable[Any], rule_id: str, where: object) -> list[dict[str, Any]]:
    """Take the compared fields from each alert of the rule. Raises: SourceError for an invalid alert."""
    checked = (checked_alert(alert, _READ) for alert in alerts)
    try:
        return [_taken(alert) for alert in checked if alert["rule_id"] == rule_id]
    except ValueError as error:
        raise SourceError(f"{where} has a line that is no alert ({error}); take it away, and ask again") from error


def _taken(alert: dict[str, Any]) -> dict[str, Any]:
    return {**{name: alert[name] for name in _READ}, "match_start_ms": _ms(alert["match_start"])}


def _sent_alerts(options: argparse.Namespace, from_ms: int) -> Iterator[dict[str, Any]]:
    settings = settings_of(options)
    if not options.alerts.startswith(KAFKA):
        if not Path(options.alerts).is_dir():
            raise UsageError(f"there is no folder {options.alerts}; name where the job sends its alerts")
        yield from read_alerts(Path(options.alerts))
        return
    servers, topic = settings.kafka.bootstrap_servers, options.alerts.removeprefix(KAFKA)
    if servers is None:
        raise UsageError("a topic needs --bootstrap-servers HOST:PORT")
    kafka = KafkaSettings(servers, tuple(settings.kafka.client_settings().items()))
    # Alerts are sent after their events, so older records are skipped; producers' clocks may be a little ahead.
    since = "earliest" if from_ms <= EVENT_TIME_MS_MIN else utc_text(from_ms - AHEAD_MS_DEFAULT)
    begins, ends = offsets_of(kafka, [topic], since, "earliest")[topic], latest_offsets(kafka, [topic])[topic]
    for partition, end in sorted(ends.items()):
        offset_range = OffsetRange(topic, partition, begins.get(partition, 0), end)
        for batch in read_range(kafka, offset_range) if offset_range.start < end else ():
            yield from (orjson.loads(value) for value in batch["value"].to_pylist() if value is not None)


def _ms(text: str) -> int:
    moment = pa.array([text.replace("Z", "")]).cast(pa.timestamp("ms"))
    time_ms: int = moment.cast(pa.int64())[0].as_py()
    return time_ms


def _table(alerts: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [alert[name] for alert in alerts] for name in _COLUMNS}
    return pa.table(columns)
