"""The cost of rule changes: a large rulebook, one change of it, and a burst of changes among events.

    python -m tests.bench.rulebook [RULES] [RECORDS] [EVENTS]        2000, 10000 and 1000000 by default

The rules are the demo's `small_then_large` with other amounts, so all of them react to its payments. One process, one
core; on Spark a key group adds only a hash. Every micro-batch gets its share of the burst, and puts its programs
together once.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from cep.base.schema import Schema
from cep.columnar.batch import TEXT, EventBatch, data_columns, empty_batch
from cep.model.rule import UpsertRecord, parse_control
from cep.nfa.compile import Compiler
from cep.rulebook.deploy import schema_of
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import save
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs

ROOT = Path(__file__).parents[2]
DOMAIN = ("card_id",)
BATCH = 50_000
CHANGES = 7


def record_of(base: UpsertRecord, number: int, version: int) -> bytes:
    """Return one rule of many: it has its own threshold, and another one for each version."""
    large = 5_000 + number + version / 100
    changes = {"id": f"rule_{number}", "version": version, "params": {**base.params, "large": large}}
    return base.model_copy(update={**changes, "on_update": "restart"}).to_json()


def apply(book: Rulebook, data: bytes, seen_ms: int | None) -> None:
    """Read, check and apply a record, like a job."""
    record, problems = parse_control(data)
    assert record is not None, problems
    assert book.apply(record, seen_ms).kind == "applied"


def batches(schema: Schema, count: int) -> Iterator[EventBatch]:
    """Yield payments of 5 000 cards, one every millisecond; one in ten is small, all are too small to fire."""
    rng = np.random.default_rng(1)
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        cards = pa.array([f"c{n}" for n in rng.integers(0, 5_000, size)], TEXT)
        columns = {name: column.take(pa.array(np.zeros(size, np.int64))) for name, column in _one(schema).items()}
        columns |= {"card_id": cards, "amount": pa.array(np.where(rng.random(size) < 0.1, 50, 20_000))}
        ids = pa.array([f"t{n}" for n in range(first, first + size)], TEXT)
        yield EventBatch(cards, ids, np.zeros(size, np.int16), np.arange(first, first + size) + 1_000, columns)


def _one(schema: Schema) -> dict[str, pa.Array]:
    columns = empty_batch(schema).columns
    return {name: pa.nulls(1, columns[name].type) for name in data_columns(schema)}


def matched(schema: Schema, book: Rulebook, events: int, burst: list[bytes]) -> tuple[float, int]:
    """Return (events a second, alerts) with the burst spread evenly over the batches."""
    programs, keyed_state, output = Programs(), None, MatchOutput()
    all_batches = list(batches(schema, events))
    share = -(-len(burst) // len(all_batches))
    started = time.perf_counter()
    for number, batch in enumerate(all_batches):
        for data in burst[number * share : (number + 1) * share]:
            apply(book, data, int(batch.time_ms[0]) - 1)
        program = programs.of(book, schema)[DOMAIN]
        keyed_state = match_events(program, keyed_state, batch, int(batch.time_ms[-1]), output)
        book.forget(int(batch.time_ms[-1]))
    return events / (time.perf_counter() - started), output.alert_table().num_rows


def main() -> None:
    numbers = [int(text) for text in sys.argv[1:]]
    rules_count, records_count, events = (*numbers, *(2_000, 10_000, 1_000_000)[len(numbers) :])
    records, _ = read_rules(ROOT / "rules")
    base = next(record for record in records if record.id == "small_then_large")
    schema = schema_of([base])
    book = Rulebook(schema, (DOMAIN,))
    before_kb = _peak_kb()
    started = time.perf_counter()
    for number in range(rules_count):
        apply(book, record_of(base, number, 1), None)
    seconds = time.perf_counter() - started
    grown_mb = (_peak_kb() - before_kb) / 1_024
    print(f"{rules_count} rules: {seconds:.2f} s, {seconds / rules_count * 1e3:.2f} ms each, {grown_mb:.0f} MB more")
    saved = save(book)
    print(f"saved: index {len(saved.index) / 1e6:.2f} MB, records {sum(map(len, saved.records.values())) / 1e6:.2f} MB")

    _print_one_change(book, base, schema)
    burst = [record_of(base, n % rules_count, 2 + n // rules_count) for n in range(records_count)]
    alone = book.copy()
    before_kb = _peak_kb()
    started = time.perf_counter()
    for data in burst:
        apply(alone, data, 999)
    seconds = time.perf_counter() - started
    each_ms, grown_mb = seconds / records_count * 1e3, (_peak_kb() - before_kb) / 1_024
    print(f"a burst of {records_count} records: {seconds:.2f} s, {each_ms:.2f} ms each, {grown_mb:.0f} MB more")

    matched(schema, book.copy(), min(events, BATCH), [])  # loads the kernels
    quiet, _ = matched(schema, book.copy(), events, [])
    busy, _ = matched(schema, book.copy(), events, burst)
    print(f"events a second: {quiet:,.0f} without changes, {busy:,.0f} during the burst, ratio {busy / quiet:.2f}")
    few, _ = matched(schema, book.copy(), events, burst[:: max(1, records_count // 20)])
    print(f"events a second with a change in each of some micro-batches: {few:,.0f}, ratio {few / quiet:.2f}")


def _print_one_change(book: Rulebook, base: UpsertRecord, schema: Schema) -> None:
    """Measure one more version of one rule, least of several: each is the next version, with a cold cache."""
    rules_count = len(book.rules)
    changed = book.copy()
    programs = Programs()
    programs.of(changed, schema)
    times: dict[str, list[float]] = {}
    for version in range(2, 2 + CHANGES):
        data = record_of(base, version, version)
        steps: dict[str, Callable[[], object]] = {
            "read, check and apply it": partial(apply, changed, data, 999 + version),
            "save the rulebook": lambda: save(changed).digest,
            "put the program together": lambda: programs.of(changed, schema),
            "forget what is over": partial(changed.forget, 999 + version),
        }
        whole_s = 0.0
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds = time.perf_counter() - started
            whole_s += seconds
            times.setdefault(name, []).append(seconds)
        times.setdefault("all of it", []).append(whole_s)
    for name, seconds_each in times.items():
        print(f"one change of {rules_count} rules, {name}: {min(seconds_each) * 1e3:.1f} ms")
    started = time.perf_counter()
    Compiler(schema).program(DOMAIN, changed.deployed())
    print(f"to compare, all {rules_count} rules compiled anew: {(time.perf_counter() - started) * 1e3:.1f} ms")


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
