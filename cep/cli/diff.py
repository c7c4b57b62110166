"""`cep diff OLD NEW --events PATH`: two folders of rules over one history → alerts gained and lost, quality, cost.

Tested by: tests/cli/test_diff.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import UsageError
from cep.base.schema import Kind, Schema
from cep.lists.store import ListStore
from cep.rulebook.compare import Comparison, Quality, compare, quality
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_lists, read_rules
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.warm import warm_up
from cep.step.job import Job

HELP = """\
Replay a history with two sets of rules, in this process, and compare them. The report says which alerts come and go,
with examples, and what an event costs with each set. With --label, a column of the events says which are bad, and the
report has precision and recall. All matches count, also those of shadow versions and suppressed alerts.

examples:
  git worktree add /tmp/before main && cep diff /tmp/before/rules rules --events history.parquet
  cep diff before/rules rules --events history.parquet --label is_fraud
"""
_READERS = {
    ".parquet": pa.parquet.read_table, ".csv": pa.csv.read_csv, ".json": pa.json.read_json,
    ".jsonl": pa.json.read_json, ".ndjson": pa.json.read_json,
}  # fmt: skip
_NO = ("", "0", "false", "no", "n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("old", type=Path, metavar="OLD", help="folder of rules")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of rules")
    parser.add_argument("--events", type=Path, required=True, metavar="PATH", help="a file or folder of events")
    parser.add_argument("--label", metavar="COLUMN", help="column of the events that is true, or 1, for bad ones")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="alerts shown of each kind (3)")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="cores of this machine to use (default 2)")


def run(options: argparse.Namespace) -> int:
    """Compare. Returns 0 if nothing is gained or lost, 1 if something is. Raises: UsageError and other CepErrors."""
    console = Console(highlight=False, soft_wrap=True)
    errors = Console(stderr=True, highlight=False)
    deployments = [_deployment(folder, errors) for folder in (options.old, options.new)]
    warm_up()  # or the first replay would be charged with what is compiled or loaded once
    replays = [
        embedded.read_and_replay(
            Job(each.schema, each.key_domains), each.rulebook, options.events, options.cores, errors
        )
        for each in deployments
    ]
    qualities: list[Quality] = []
    if options.label is not None:
        bad = _labelled(options.events, options.label, deployments[1].schema)
        qualities = [quality(replayed.alerts, bad) for replayed in replays]
    comparison = compare(replays[0].alerts, replays[1].alerts)
    _print_figures(replays, qualities, console)
    print_changes(comparison, options.examples, console)
    return 1 if comparison.gained or comparison.lost else 0


def _deployment(folder: Path, errors: Console) -> Deployment:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of rules")
    records, problems = read_rules(folder)
    lists = ListStore()
    given, more = read_lists(folder, lists)
    problems += more
    deployment = deploy([*given, *records], lists)
    problems += [f"{folder}: {rule.rule_id} is set aside: {rule.reason}" for rule in deployment.set_aside]
    for problem in problems:
        errors.print(problem, markup=False)
    if not deployment.key_domains:
        raise UsageError(f"{folder} has no rule that can be in force")
    return deployment


def _labelled(path: Path, column: str, schema: Schema) -> set[str]:
    """Return the ids of the events that are labelled. Raises: UsageError if the events have no such column."""
    files = sorted(p for p in path.rglob("*") if p.suffix in _READERS) if path.is_dir() else [path]
    names = {field.name for event in schema.event_types for field in event.fields if field.type.kind is Kind.ID}
    bad_ids: set[str] = set()
    for file in files:
        table = _READERS[file.suffix](file)
        id_name = next((name for name in table.column_names if name in names), None)
        if column not in table.column_names or id_name is None:
            raise UsageError(f"{file} has no column {column}, or none of the ids {', '.join(sorted(names))}")
        text = pc.utf8_lower(pc.fill_null(table[column].cast(pa.string()), ""))
        is_bad = pc.invert(pc.is_in(text, value_set=pa.array(_NO)))
        bad_ids |= set(table[id_name].cast(pa.string()).filter(is_bad).to_pylist())
    return bad_ids


def _print_figures(replays: Sequence[Replayed], qualities: Sequence[Quality], console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("", "old", "new"):
        table.add_column(title, justify="right" if title else "left")
    table.add_row("alerts", *(f"{each.alerts.num_rows:,}" for each in replays))
    for name in ("precision", "recall") if qualities else ():
        values = [getattr(each, name) for each in qualities]
        table.add_row(name, *("–" if value is None else f"{value:.3f}" for value in values))
    table.add_row("µs an event", *(_cost(each) for each in replays))
    for name in ("run_steps", "runs_started"):
        table.add_row(f"{name.replace('_', ' ')} an event", *(_rate(each, name) for each in replays))
    console.print(table)


def _cost(replayed: Replayed) -> str:
    events = replayed.counters["events"]
    return f"{replayed.seconds / events * 1e6:.2f}" if events else "–"


def _rate(replayed: Replayed, name: str) -> str:
    events = replayed.counters["events"]
    return f"{replayed.counters[name] / events:.3f}" if events else "–"


def print_changes(comparison: Comparison, examples_count: int, console: Console) -> None:
    """Print how many alerts are gained, lost and kept, by rule, with examples."""
    console.print(f"\nkept {comparison.kept_count:,}, gained {len(comparison.gained):,}, lost {len(comparison.lost):,}")
    for title, alerts, style in (("gained", comparison.gained, "green"), ("lost", comparison.lost, "red")):
        by_rule: dict[str, list[dict[str, Any]]] = {}
        for alert in alerts:
            by_rule.setdefault(alert["rule_id"], []).append(alert)
        for rule_id, of_rule in sorted(by_rule.items()):
            console.print(Text(f"{title} {len(of_rule):,} of {rule_id}", style=style))
            for alert in of_rule[:examples_count]:
                at = str(alert["detected_at"])[:19]
                events = ", ".join(event["event_id"] for event in alert["events"])
                console.print(f"  {at}  {alert['key']}  {alert['message']}  [{events}]", markup=False)
