"""`cep shadow report`: what a version in shadow found beside the live one → gained, lost, volume.

Tested by: tests/cli/test_diff.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from rich.console import Console

from cep.base.errors import UsageError
from cep.cli.diff import print_changes
from cep.rulebook.compare import compare
from cep.rulebook.held import SHADOW
from cep.runners.rule_output import HELD_FOLDER, STATUS_FILE
from cep.sinks.files import read_alerts

HELP = """\
Compare what a shadow version has found with what the live version of the rule has sent, over the time that the shadow
has been running. The shadow's matches are in the job's checkpoint folder, the live alerts in the folder of JSON lines
that the job writes (`--alerts FOLDER`). What each version costs is a question for `cep diff`.

examples:
  cep shadow report card_testing --checkpoint /var/lib/cep/job --alerts alerts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb below `cep shadow` and its arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    report = verbs.add_parser("report", help="alerts gained and lost, and volume")
    report.add_argument("rule", metavar="RULE", help="the rule's id")
    report.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="of the live job")
    report.add_argument("--alerts", type=Path, required=True, metavar="FOLDER", help="JSON lines that the job writes")
    report.add_argument("--examples", type=int, default=3, metavar="N", help="alerts shown of each kind (3)")


def run(options: argparse.Namespace) -> int:
    """Returns 0. Raises: UsageError if the job has no such rule in shadow."""
    console = Console(highlight=False, soft_wrap=True)
    from_ms, version = _shadow(options.checkpoint, options.rule)
    shadow = [alert for alert in _held(options.checkpoint) if alert["rule_id"] == options.rule]
    shadow = [alert for alert in shadow if alert["version"] == version]
    live = [alert for alert in read_alerts(options.alerts) if alert["rule_id"] == options.rule]
    # A live match that began before the shadow did is none that it could have found.
    live = [alert for alert in live if _ms(alert["match_start"]) >= from_ms]
    found = compare(_table(live), _table(shadow))
    console.print(f"{options.rule}: shadow version {version} {len(shadow):,} alerts, live {len(live):,}", markup=False)
    print_changes(found, options.examples, console)
    return 0


def _shadow(checkpoint: Path, rule_id: str) -> tuple[int, int]:
    """(event time from which, version) of the shadow."""
    path = checkpoint / STATUS_FILE
    if not path.exists():
        raise UsageError(f"{path} is not there; name the checkpoint folder of a live job that has run")
    rules = orjson.loads(path.read_bytes())["rules"]
    versions = [(r["from_ms"], r["version"]) for r in rules if r["rule_id"] == rule_id and r["status"] == SHADOW]
    if not versions:
        raise UsageError(f'the job has no version of {rule_id} in shadow; publish one with `status = "shadow"`')
    return max(versions, key=lambda found: found[1])


def _held(checkpoint: Path) -> list[dict[str, Any]]:
    lines = [
        orjson.loads(line)
        for file in sorted((checkpoint / HELD_FOLDER).glob("batch-*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]
    return [line["alert"] for line in lines if line["held"] == SHADOW]


def _ms(text: str) -> int:
    moment = pa.array([text.replace("Z", "")]).cast(pa.timestamp("ms"))
    found: int = moment.cast(pa.int64())[0].as_py()
    return found


def _table(alerts: list[dict[str, Any]]) -> pa.Table:
    names = ("rule_id", "key", "message", "detected_at", "events")
    columns: dict[str, list[Any]] = {name: [alert[name] for alert in alerts] for name in names}
    return pa.table(columns)
