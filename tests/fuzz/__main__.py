"""Random scenarios, asked of the real Flink CEP and of the engine: python -m tests.fuzz --scenarios 2000 --seed 1.

Prints counts by verdict, by known difference and by feature, and every finding that nothing explains, with the text of
the pattern. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from cep.testing.conformance.compare import Verdict
from cep.testing.conformance.judge import difference_lines, event_line, headline
from tests.fuzz.examine import Finding, examine, examine_alone, examine_skip, without_skip
from tests.fuzz.features import features
from tests.fuzz.peer import answered, draft, is_there, would_hang

_ROUND = 2_000
# What the library answers when a scenario is too much for it; there is nothing to compare with.
_NO_ANSWERS = ("TooMany", "Hang", "NullPointerException")


class Totals:
    """What has been counted over all rounds."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.numbers: Counter[tuple[int, ...]] = Counter()
        self.tags: Counter[str] = Counter()
        self.unasked = self.unanswered = self.ties = 0
        self.open: list[Finding] = []

    @property
    def compared(self) -> int:
        return sum(self.verdicts[v] for v in (Verdict.PASS, Verdict.DIFFERS, Verdict.FAIL))


def one_round(seed: int, count: int, totals: Totals) -> None:
    """Draft, ask, compare; then ask again, without skipping, where a skip strategy is in doubt."""
    drafted = draft(seed, count)
    asked = [one for one in drafted if not would_hang(one["pattern"])]
    totals.unasked += len(drafted) - len(asked)
    again: list[tuple[dict[str, object], Finding]] = []
    for given in answered(asked):
        if given["expected"].get("error") in _NO_ANSWERS:
            totals.unanswered += 1
            continue
        found = examine(given)
        totals.tags.update(features(given))
        if found.outcome.disagreement and found.outcome.scenario.skips and not found.bug:
            again.append((given, found))
        else:
            _count(found, totals)
    free = answered([without_skip(given) for given, _ in again])
    for (_, found), answer in zip(again, free, strict=True):
        is_answered = answer["expected"].get("error") not in _NO_ANSWERS
        _count(examine_skip(found, answer) if is_answered else examine_alone(found), totals)


def _count(found: Finding, totals: Totals) -> None:
    totals.verdicts[found.outcome.verdict] += 1
    totals.ties += found.tie
    if found.outcome.numbers:
        totals.numbers[found.outcome.numbers] += 1
    if found.is_open:
        totals.open.append(found)
        print("\n".join(_lines(found)), flush=True)


def _lines(found: Finding) -> list[str]:
    outcome = found.outcome
    lines = ["", headline(outcome)]
    lines += [f"  engine and oracle disagree: {found.bug}"] * bool(found.bug)
    lines += [f"  doubtful: {found.doubt}"] * bool(found.doubt)
    if outcome.written is not None:
        lines += ["    " + line for line in outcome.written.text.splitlines() if not line.startswith("event ")]
    return [*lines, f"    events: {event_line(outcome.scenario)}", *("    " + d for d in difference_lines(outcome))]


def main() -> int:
    """Run rounds until the number of scenarios is reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=_ROUND)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="append the totals to this file after each round")
    options = parser.parse_args()
    if not is_there():
        print("the peer is not there: set FLINK_VENV to an environment with apache-flink-libraries", file=sys.stderr)
        return 2
    totals, begun = Totals(), time.monotonic()
    left, seed = options.scenarios, options.seed
    while left > 0:
        one_round(seed, min(left, _ROUND), totals)
        left, seed = left - _ROUND, seed + 1
        line = f"seed {seed - 1}: {totals.compared} compared, {len(totals.open)} open, {time.monotonic() - begun:.0f} s"
        print(line, flush=True)
        if options.log is not None:
            with options.log.open("a") as log:
                log.write(f"{line} {dict(totals.verdicts)} {dict(totals.numbers)}\n")
    _print_totals(totals)
    return 1 if totals.open else 0


def _print_totals(totals: Totals) -> None:
    print(f"\n{totals.compared} compared, {totals.unasked} not asked (the library would hang), ", end="")
    print(f"{totals.unanswered} not answered, {totals.ties} skip ties, {len(totals.open)} open")
    for verdict, count in totals.verdicts.most_common():
        print(f"{count:8} {verdict}")
    for numbers, count in sorted(totals.numbers.items()):
        print(f"{count:8} #{', #'.join(map(str, numbers))}")
    print(", ".join(f"{tag} {count}" for tag, count in sorted(totals.tags.items())))


if __name__ == "__main__":
    sys.exit(main())
