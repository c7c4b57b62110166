"""Alerts of the live job and of the replay → a table by rule, and whether they are equal and as expected.

Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from cep.base.files import replace_file
from cep.base.terminal import new_table
from cep.demo.stream import Stream
from cep.sinks.json_form import json_lines

EXPECTED = Path(__file__).with_name("expected_alerts.json")
SEED = 7  # of the days whose alert ids are in EXPECTED


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a day: the planted cases, the alerts of both jobs, and the totals of the live one."""

    stream: Stream
    live: pa.Table
    replayed: pa.Table
    totals: Counter[str]

    def ids_by_rule(self) -> dict[str, list[str]]:
        """Return the ids of the live alerts, for each rule that has fraud planted for it."""
        planted = sorted({case.rule_id for case in self.stream.planted if case.fires})
        return {
            rule_id: sorted(json.loads(line)["alert_id"] for line in _lines_of(self.live, rule_id))
            for rule_id in planted
        }


def expected_ids(seed: int, size: str) -> dict[str, list[str]] | None:
    """Return the alert ids that this day must give, by rule; None if they are not recorded."""
    ids_by_size: dict[str, dict[str, list[str]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return ids_by_size.get(size) if seed == SEED else None


def write_expected(size: str, ids: dict[str, list[str]]) -> None:
    """Make these the alert ids that a day of this size must give."""
    ids_by_size = json.loads(EXPECTED.read_text(encoding="utf-8"))
    ids_by_size[size] = ids
    replace_file(EXPECTED, f"{json.dumps(ids_by_size, indent=1, sort_keys=True)}\n".encode())


def compare(outcome: Outcome, expected: dict[str, list[str]] | None, notes: dict[str, str], console: Console) -> bool:
    """Print a table by rule, with a note where there is one. Return True if live, replay and `expected` agree."""
    planted = Counter(case.rule_id for case in outcome.stream.planted if case.fires)
    table = new_table(("rule",), ("planted", "live", "replay"), ("equal",))
    for rule_id in sorted(planted):
        live, replayed = _lines_of(outcome.live, rule_id), _lines_of(outcome.replayed, rule_id)
        equal = "[green]yes[/green]" if live == replayed else "[bold red]NO[/bold red]"
        name = rule_id + notes.get(rule_id, "")
        table.add_row(name, str(planted[rule_id]), str(len(live)), str(len(replayed)), equal)
    console.print(table)
    console.print()
    is_same = sorted(json_lines(outcome.live)) == sorted(json_lines(outcome.replayed))
    if is_same:
        equal = f"All {outcome.live.num_rows} alerts are equal, byte for byte: the replay is the live engine."
        console.print(f"[green]{equal}[/green]")
    else:
        counts = f"Live has {outcome.live.num_rows} alerts, replay {outcome.replayed.num_rows}: they differ."
        console.print(f"[bold red]{counts}[/bold red]")
    totals = outcome.totals
    is_complete = totals["late_events"] == 0
    is_complete &= totals["records"] == totals["events"] == outcome.stream.payments.num_rows
    if not is_complete:
        console.print(f"[bold red]Payments were lost: {dict(totals)}[/bold red]")
    is_expected = expected is None or expected == outcome.ids_by_rule()
    if not is_expected:
        console.print(f"[bold red]These are not the alerts of {EXPECTED.name}.[/bold red]")
    return is_same and is_complete and is_expected


def _lines_of(alerts: pa.Table, rule_id: str) -> list[bytes]:
    """Return a rule's whole alerts, sorted."""
    return sorted(line for line in json_lines(alerts) if json.loads(line)["rule_id"] == rule_id)
