"""How well `cep rules suggest` detects fraud in labelled data, compared with the best hand-written pattern.

    python -m tests.bench.suggested [--days N] [--planted N] [SETS]

**Planted**: histories that each have their own fraud: an order of events, a repetition, an absence, an equal value, an
unusual value for the key. A fraud is recovered if a suggestion detects half of it on later time with a precision of
0.8.

**Data**: the first seven tenths of the time are mined; the rest is reported, except for a gap between them. The table
compares the suggestions with the patterns of `patterns/`, with default parameters and with the parameters of `cep
rules tune`, all on the same time; the best of these has the highest F1 there, which favours it. The bench asks for
suggestions once by each key. The library detects no chargebacks, as its patterns look for bursts. There the rivals are
the patterns of `chargebacks.cep`, which a person wrote after a look at the first part of the time, and which `cep rules
tune` has tuned on it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from cep.analysis.backtest import Part
from cep.analysis.measure import Measured
from cep.analysis.suggest import MINED, Suggested, Wanted, fields_of, suggest
from cep.lang.load import load_files, load_text
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from cep.testing.harness import Outcome, run_checked
from tests.analysis.test_suggest import absent, equal, learned, planted, repeated, spread, unusual
from tests.bench import baselines
from tests.bench.baselines import measured_on, tuned
from tests.bench.labelled import Given, given
from tests.bench.peer_data import show, upsert
from tests.testing.library import rules_for, rules_in

_SILENT = Console(quiet=True)
_KEYS = {
    "simulated": ("customer_id", "terminal_id"), "payments": ("customer_id", "terminal_id"),
    "laundering": ("account_id",), "transfers": ("account_id",),
    "chargebacks": ("card_id", "account_id", "device_id", "merchant_id"), "logins": ("source_ip",),
}  # fmt: skip
_PLANTS = (repeated, absent, equal, unusual)
_DAY_MS = 86_400_000
Row = tuple[str, ...]


def recovered(seed: int, folder: Path) -> tuple[str, bool]:
    """Plant a fraud and mine for it. Return its kind, and whether it was recovered."""
    kind = seed % (len(_PLANTS) + 1)
    plant = _PLANTS[kind] if kind < len(_PLANTS) else None
    draw = random.Random(seed)
    table = planted(seed) if plant is None else spread(draw, 40, plant(draw))
    events, marks, pieces_of = learned(table, folder)
    answer = suggest(events, marks, pieces_of, "card_id", Wanted(3, 3, 0.8))
    back = any((each.precision.value or 0) >= 0.8 and (each.recall.value or 0) >= 0.5 for each in answer.suggestions)
    return "order" if plant is None else plant.__name__, back and tests_pass(answer)


def tests_pass(answer: Suggested) -> bool:
    """Run the tests of the suggestions."""
    suite = run_checked(load_text(answer.text, "suggested"))
    return suite.count(Outcome.PASSED) == len(suite.tested)


def value_of(name: str, measured: Measured, names: Sequence[str], part: Part) -> tuple[float, Row]:
    """Return F1 and the figures of some rules together."""
    times = measured.history.events.time_ms
    alerts = baselines.of_rules(measured.judged, names)
    value = baselines.figures(alerts, measured.marks, part, np.full(len(times), -1), times)
    return value.f1, (name, f"{value.alerts:,}", *(f"{x:.3f}" for x in (value.precision, value.recall, value.f1)))


def run(data: Given, precision: float, folder: Path) -> None:
    """Suggest by each key, compare with the library, and print."""
    path = folder / f"{data.name}.parquet"
    pq.write_table(data.events, path)
    library = rules_for(set(data.types))
    if data.rivals is not None:
        library += rules_in(data.rivals, load_files([data.rivals]))
    mined = measured_on(data, library[:1], path, fields_of(deploy(library[:1]).schema))
    events, marks = mined.history.events, mined.marks
    first, last = int(events.time_ms.min()), int(events.time_ms.max())
    until = int(first + MINED * (last - first))
    begin = until + data.gap_days * _DAY_MS
    by_tune = (tuned(data, rule, path, until) for rule in library if rule.id in data.tries)
    written = measured_on(data, [*library, *(rule for rule in by_tune if rule is not None)], path)
    part = Part("later", begin, last + 1, marks.first_ms >= begin, marks, (last + 1 - begin) / _DAY_MS)
    by_rule = sorted((value_of(name, written, [name], part) for name in written.judged.names), reverse=True)
    rows, suggestions = [by_rule[0][1]], []
    for key in _KEYS[data.name]:
        began = time.process_time()
        answer = suggest(events, marks, partial(read_pieces, path), key, Wanted(3, 5, precision))
        seconds = time.process_time() - began
        for number, each in enumerate(answer.suggestions):
            suggestions.append(upsert(answer.text, each.name).model_copy(update={"id": f"{key}_{number + 1}"}))
        good = "tests pass" if not answer.suggestions or tests_pass(answer) else "TESTS FAIL"
        print(
            f"{data.name} by {key}: {answer.tried} mined, {len(answer.suggestions)} proposed, {seconds:.0f} s, {good}"
        )
        print("\n".join(line for line in answer.text.splitlines() if line.lstrip().startswith(("seq ", "where "))))
    best = 0.0
    if suggestions:
        later = measured_on(data, suggestions, path)
        ranked = sorted((value_of(name, later, [name], part) for name in later.judged.names), reverse=True)
        best = ranked[0][0]
        rows += [ranked[0][1], value_of("all suggestions", later, later.judged.names, part)[1]]
    ratio = best / by_rule[0][0] if by_rule[0][0] else float("inf")
    title = f"{data.name}: {data.events.num_rows:,} events, {int(part.frauds.sum()):,} frauds on later time; the best "
    show(
        f"{title}suggestion has {ratio:.2f} of the F1 of the best pattern",
        ("", "alerts", "precision", "recall", "f1"),
        rows,
    )


def main() -> None:
    """Mine and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=[*_KEYS], metavar="SETS", help=f"some of {', '.join(_KEYS)}")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--customers", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted", type=int, default=20)
    parser.add_argument("--precision", type=float, default=0.5)
    options = parser.parse_args()
    if unknown := sorted({*options.sets} - {*_KEYS}):
        parser.error(f"there is no set {', '.join(unknown)}; the sets are {', '.join(_KEYS)}")
    outcomes: dict[str, list[bool]] = {}
    for seed in range(1, options.planted + 1):
        with tempfile.TemporaryDirectory() as folder:
            kind, back = recovered(seed, Path(folder))
            outcomes.setdefault(kind, []).append(back)
    if outcomes:
        by_kind = ", ".join(f"{kind} {sum(results)} of {len(results)}" for kind, results in sorted(outcomes.items()))
        print(f"{sum(map(sum, outcomes.values()))} of {options.planted} planted frauds recovered: {by_kind}")
    with tempfile.TemporaryDirectory() as folder:
        for each in given(options.sets, options.days, options.customers, options.seed):
            run(each, options.precision, Path(folder))


if __name__ == "__main__":
    main()
