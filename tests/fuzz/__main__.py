"""Random scenarios, answered by the real Flink CEP and by the engine: python -m tests.fuzz --scenarios 5000 --seed 1.

Prints counts by verdict, by known difference and by feature, and every unexplained finding, with the text of the
pattern. Exit code 1 if there is one. With --log a campaign can be interrupted and started again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import KINDS, ROUND, Tally, append, build, drafted, examined, lines_of, read_log, run
from tests.fuzz.peer import is_there


def main() -> int:
    """Run rounds until the number of scenarios is reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=ROUND, help=f"how many; {ROUND} of them have one seed")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="which scenarios of a seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes, each with a Java machine")
    parser.add_argument("--log", type=Path, help="a line a round; rounds that it has are not run again")
    parser.add_argument("--only", metavar="SEED/NUMBER", help="show what becomes of one scenario")
    options = parser.parse_args()
    if not is_there():
        print("the peer is not there: set FLINK_VENV to an environment with apache-flink-libraries", file=sys.stderr)
        return 2
    if options.only:
        seed, number = map(int, options.only.split("/"))
        return _show("random" if options.kind == "richest" else options.kind, seed, number)
    return _campaign(options.kind, options.scenarios, options.seed, options.jobs, options.log)


def _show(kind: str, seed: int, number: int) -> int:
    _, findings = examined(drafted(kind, seed, number + 1)[number:])
    for one in findings:
        print("\n".join(lines_of(one)))
    if not findings:
        print("the library has no answer, or would take too long for one", file=sys.stderr)
        return 2
    return int(any(one.is_open for one in findings))


def _campaign(kind: str, scenarios: int, seed: int, jobs: int, log: Path | None) -> int:
    current, (known_build, rounds) = build(kind), read_log(log) if log is not None else ("", {})
    if known_build and known_build != current:
        print(f"{log} is of another build: begin another log, one campaign is of one build", file=sys.stderr)
        return 2
    totals, begun, at_first = Tally(), time.monotonic(), 0
    for tally in rounds.values():
        totals.add(tally)
    at_first = totals.drafted

    def add_tally(seed: int, tally: Tally) -> None:
        totals.add(tally)
        if log is not None:
            append(log, current, seed, tally)
        print("".join(f"{text}\n" for text in tally.open), end="")
        each = (totals.drafted - at_first) / (time.monotonic() - begun)
        print(f"seed {seed}: {totals.compared} compared, {len(totals.open)} open, {each:.0f} scenarios/s", flush=True)

    todo = [(seed + first // ROUND, min(ROUND, scenarios - first)) for first in range(0, scenarios, ROUND)]
    run(kind, [one for one in todo if one[0] not in rounds], jobs, add_tally)
    _print_totals(current, totals)
    return 1 if totals.open else 0


def _print_totals(current: str, totals: Tally) -> None:
    print(f"\nbuild {current}: {totals.drafted} scenarios, {totals.compared} compared", end="")
    print(f", {totals.unasked} not asked (the library would hang), {totals.unanswered} not answered", end="")
    print(f", {totals.proven} proven behind a skip, {totals.ties} of them ties, {len(totals.open)} open")
    for verdict, count in totals.verdicts.most_common():
        print(f"{count:8} {verdict}")
    for refusal, count in totals.refusals.most_common():
        print(f"{count:8} no answer: {refusal}")
    for numbers, count in sorted(totals.numbers.items(), key=lambda entry: [int(n) for n in entry[0].split()]):
        print(f"{count:8} #{', #'.join(numbers.split())}")
    print(", ".join(f"{tag} {count}" for tag, count in sorted(totals.features.items())))


if __name__ == "__main__":
    sys.exit(main())
