"""Shared parts of the benchmarks: the peer's events and patterns, checksums of matches, medians, tables.

The peer is Apache Flink CEP. Its benchmark, with the generator of the events, lies next to the repository; in a
checkout without it every benchmark says so and stops.
"""

import csv
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import Matches, advance
from cep.lang.check.bind import bind
from cep.lang.load import load_text
from cep.model.rule import UpsertRecord
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
PEER = SHARED / "peers" / "flink"
ULB = SHARED / "data" / "ulb_handbook_transactions.parquet"
# The events of the peer's own figures: the first rows of a million.
GENERATED, KEYS, SEED = 1_000_000, 10_000, 7
NAMES = ("p1", "p2", "p3", "p4")
REPEATS = 3
END_MS = 2**61 - 1
FILE_COLUMNS = 160
MASK = (1 << 64) - 1

SOURCE = """
event tx {
  seq_no      id
  event_time  time
  account     string
  amount      decimal(2)
  merchant    int
  country     int
  channel     int
  success     int
}
pattern p1(large: decimal = 500.00) by account {
  seq    small -> large_one  within 1 min
  where  small:     tx  amount < 1.00
         large_one: tx  amount > large
  skip   none
}
pattern p2(large: decimal = 200.00) by account {
  seq    probe{3,} -> hit  within 10 min
  where  probe: tx  success == 0 and amount < 10.00
         hit:   tx  success == 1 and amount > large
  skip   past last
}
pattern p3 by account {
  seq    here ->> there  within 30 min
  where  here:  tx
         there: tx  country != here.country
  skip   none
}
pattern p4 by account {
  seq    up{5}  within 1 h
  where  up: tx  up.amount is null or amount > up.amount
  skip   none
}
"""


def stop(message: str) -> NoReturn:
    """Print the reason why this benchmark cannot run, and stop."""
    print(message)
    sys.exit(0)


def peer_columns(count: int) -> dict[str, Any]:
    """Return the first `count` of the peer's events as arrays, by column."""
    path = PEER / "gen_events.py"
    if not path.exists():
        stop(f"the peer's benchmark is not at {PEER}; nothing to measure with")
    spec = importlib.util.spec_from_file_location("gen_events", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    columns = module.generate(max(count, GENERATED), KEYS, SEED)
    return {name: values[:count] for name, values in columns.items()}


def peer_batch(columns: dict[str, Any]) -> EventBatch:
    """Return the peer's events as the engine takes them."""

    def text(values: Any) -> pa.Array:
        return pa.array(values).cast(pa.string()).cast(TEXT)

    ids, account = text(columns["seq"]), text(columns["account"])
    cents = pa.array(np.rint(columns["amount"] * 100).astype(np.int64))
    whole = {name: pa.array(columns[name]) for name in ("merchant", "country", "channel", "success")}
    values = {"seq_no": ids, "account": account, "amount": cents, **whole}
    return EventBatch(account, ids, np.zeros(len(ids), np.int16), np.asarray(columns["ts"]), values)


def peer_program(names: Sequence[str]) -> Program:
    """Compile the peer's patterns to one program; a repeated name is a rule with another threshold."""
    checked = load_text(SOURCE)
    assert checked.ok, checked.diagnostics
    rules = []
    for number, name in enumerate(names):
        is_first = name not in names[:number]
        pattern, diagnostics = bind(checked.patterns[name], {} if is_first else {"large": 500 + number})
        assert pattern is not None, diagnostics
        rules.append(DeployedRule(f"{name}_{number}", 1, 1, str(number), pattern))
    return compile_rules(checked.schema, ("account",), rules)


def records(names: Sequence[str] = NAMES, source: str = SOURCE) -> list[UpsertRecord]:
    """Return the records that deploy the peer's patterns."""
    return [upsert(source, name) for name in names]


def upsert(source: str, name: str, **params: str) -> UpsertRecord:
    """Return the record that deploys a pattern of a text under the pattern's name, with these parameters."""
    return UpsertRecord(
        id=name, version=1, pattern=name, status="live", severity="low", owner="bench", message="m", source=source,
        params=dict(params),
    )  # fmt: skip


def write_events(columns: dict[str, Any], path: Path) -> None:
    """Write the events in the form of the peer's benchmark."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            writer.writerow(f"{v:.2f}" if isinstance(v, float) else v for v in row)


def run_peer(path: Path, tasks: int = 1, *more: str) -> dict[str, Any]:
    """Return the peer's own figures, by pattern; `more` are further options of its benchmark."""
    command = [str(PEER / "run.sh"), "bench", "--events", str(path), "--parallelism", str(tasks)]
    command += ["--backend", "hashmap", *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        stop(f"the peer's benchmark failed:\n{result.stderr[-2_000:]}")
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {one["pattern"]: one for one in reports}


def run_once(program: Program, batch: EventBatch) -> Matches:
    return advance(program, None, batch, END_MS).matches


def checksum(bound_ids: Sequence[Sequence[int]]) -> str:
    """Return the peer's checksum: FNV-1a over the sorted sequence numbers of each match, summed over matches."""
    total = 0
    for ids in bound_ids:
        digest = 0xCBF29CE484222325
        for number in sorted(ids):
            digest = ((digest ^ number) * 0x100000001B3) & MASK
        total = (total + digest) & MASK
    return f"{total:016x}"


def by_rule(matches: Matches, rules_count: int) -> list[tuple[int, str]]:
    """Return (matches, checksum) of each rule."""
    ids = [int(i) for i in matches.event_id.to_pylist()]
    bound_ids: list[list[list[int]]] = [[] for _ in range(rules_count)]
    for row in np.flatnonzero(matches.completed):
        bound_ids[matches.rule[row]].append(ids[matches.offsets[row] : matches.offsets[row + 1]])
    return [(len(bound), checksum(bound)) for bound in bound_ids]


def median_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of the work, after one uncounted run."""
    work()
    times_s = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started)
    return statistics.median(times_s)


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; in a file it is as wide as its names need."""
    table = Table(title=title, box=None, header_style="bold", pad_edge=False, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)
