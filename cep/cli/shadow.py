"""`cep shadow report`: what a version in shadow found beside the live one → gained, lost, volume, cost.

Tested by: tests/cli/test_diff.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from cep.base.errors import UsageError
from cep.cli.diff import print_changes
from cep.rulebook.compare import compare
from cep.rulebook.suppression import SHADOW
from cep.runners.live_progress import read_progress
from cep.runners.rule_output import HELD_FOLDER, STATUS_FILE
from cep.sinks.files import read_alerts

HELP = """\
Compare the alerts of a shadow version with those that the live version of the rule has sent, since the shadow's start.
The shadow's alerts are in the job's checkpoint folder. The live ones are in the folder of JSON lines that the job
writes (`--alerts FOLDER`). The cost is the number of open runs that an event was offered to, counted by the job while
both versions ran. `cep diff` gives it in microseconds.

examples:
  cep shadow report card_testing --checkpoint /var/lib/cep/job --alerts alerts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb below `cep shadow` and its arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    report = verbs.add_parser("report", help="alerts gained and lost, volume, and cost")
    report.add_argument("rule", metavar="RULE", help="the rule's id")
    report.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="of the live job")
    report.add_argument("--alerts", type=Path, required=True, metavar="FOLDER", help="JSON lines that the job writes")
    report.add_argument("--examples", type=int, default=3, metavar="N", help="alerts shown of each kind (3)")


def run(options: argparse.Namespace) -> int:
    """Report. Returns 0. Raises: UsageError if the job has no such rule in shadow."""
    console = Console(highlight=False, soft_wrap=True)
    from_ms, version = _shadow(options.checkpoint, options.rule)
    shadow = [alert for alert in _shadow_alerts(options.checkpoint) if alert["rule_id"] == options.rule]
    shadow = [alert for alert in shadow if alert["version"] == version]
    live = [alert for alert in read_alerts(options.alerts) if alert["rule_id"] == options.rule]
    # A live match that began before the shadow did is none that it could have found.
    live = [alert for alert in live if _ms(alert["match_start"]) >= from_ms]
    comparison = compare(_table(live), _table(shadow))
    console.print(f"{options.rule}: shadow version {version} {len(shadow):,} alerts, live {len(live):,}", markup=False)
    console.print(_costs(options.checkpoint, options.rule))
    print_changes(comparison, options.examples, console)
    return 0


def _costs(checkpoint: Path, rule_id: str) -> Table:
    """List what each version of the rule has cost since one was in shadow."""
    _, totals = read_progress(checkpoint)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("version", "events", "run steps", "steps an event"):
        table.add_column(title, justify="right")
    prefix = f"rule_events[{rule_id}@"
    versions = sorted(int(name[len(prefix) : -1]) for name in totals if name.startswith(prefix))
    for version in versions:
        events, steps = (totals[f"{name}[{rule_id}@{version}]"] for name in ("rule_events", "rule_steps"))
        table.add_row(str(version), f"{events:,}", f"{steps:,}", f"{steps / events:.3f}" if events else "–")
    return table


def _shadow(checkpoint: Path, rule_id: str) -> tuple[int, int]:
    """Return (event time of its start, version) of the shadow."""
    path = checkpoint / STATUS_FILE
    if not path.exists():
        raise UsageError(f"{path} is not there; name the checkpoint folder of a live job that has run")
    rules = orjson.loads(path.read_bytes())["rules"]
    versions = [(r["from_ms"], r["version"]) for r in rules if r["rule_id"] == rule_id and r["status"] == SHADOW]
    if not versions:
        raise UsageError(f'the job has no version of {rule_id} in shadow; publish one with `status = "shadow"`')
    return max(versions, key=lambda pair: pair[1])


def _shadow_alerts(checkpoint: Path) -> list[dict[str, Any]]:
    lines = [
        orjson.loads(line)
        for file in sorted((checkpoint / HELD_FOLDER).glob("batch-*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]
    return [line["alert"] for line in lines if line["held"] == SHADOW]


def _ms(text: str) -> int:
    moment = pa.array([text.replace("Z", "")]).cast(pa.timestamp("ms"))
    time_ms: int = moment.cast(pa.int64())[0].as_py()
    return time_ms


def _table(alerts: list[dict[str, Any]]) -> pa.Table:
    names = ("rule_id", "key", "message", "detected_at", "events")
    columns: dict[str, list[Any]] = {name: [alert[name] for alert in alerts] for name in names}
    return pa.table(columns)
