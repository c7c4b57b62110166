"""Seeds → rounds of scenarios, each answered by the library and by the engine, and their counts in a log.

A round is a few thousand scenarios and two calls of the library: one for all, one for differences that a skip strategy
leaves in doubt. Rounds are independent, so that processes take them in turn. The log has one JSON line per round. An
interrupted campaign continues at the end of the log, but only with the same build: the first line of the log holds a
hash over all files that could change an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.conformance.compare import Verdict
from tests.conformance.judge import difference_lines, event_line, headline
from tests.conformance.run import without_limits
from tests.fuzz.examine import Finding, examine
from tests.fuzz.peer import PEER, answered, draft, would_hang
from tests.fuzz.small import features, nested, richest, small
from tests.fuzz.strategy import MATCHES_MAX, beginnings, chunks, prove

ROOT = Path(__file__).resolve().parents[2]
ROUND = 2_000
KINDS = ("random", "richest", "small", "nested")
# The library's errors when a scenario is too much for it, so that answers cannot be compared.
_NO_ANSWERS = ("TooMany", "Hang", "NullPointerException")

Json = Any


@dataclass
class Tally:
    """The counts of a round, or of all rounds.

    `numbers` counts the known differences, `refusals` the reasons why an answer is missing, and `proven` the
    differences under a skip strategy that have been proven.
    """

    drafted: int = 0
    unasked: int = 0
    unanswered: int = 0
    ties: int = 0
    proven: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    open: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """Return the number of scenarios that both sides answer."""
        return sum(self.verdicts[v] for v in (Verdict.PASS, Verdict.DIFFERS, Verdict.FAIL))

    def add(self, other: Tally) -> None:
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def count(self, finding: Finding) -> None:
        outcome = finding.outcome
        self.verdicts[outcome.verdict] += 1
        self.ties += finding.tie
        if outcome.numbers:
            self.numbers[" ".join(map(str, outcome.numbers))] += 1
        if outcome.verdict is Verdict.NO_ANSWER:
            self.refusals[outcome.scenario.refusal.partition(":")[0]] += 1
        if finding.is_open:
            self.open.append("\n".join(lines_of(finding)))


def lines_of(finding: Finding) -> list[str]:
    outcome = finding.outcome
    lines = ["", headline(outcome)]
    lines += [f"  engine and oracle disagree: {finding.bug}"] * bool(finding.bug)
    lines += [f"  doubtful: {finding.doubt}"] * bool(finding.doubt)
    if outcome.written is not None:
        text = outcome.written.text
        lines += ["    " + line for line in text[text.index("pattern ") :].splitlines()]
    return [*lines, f"    events: {event_line(outcome.scenario)}", *("    " + d for d in difference_lines(outcome))]


@without_limits()
def examined(scenarios: list[Json]) -> tuple[Tally, list[Finding]]:
    """Answer and compare the scenarios, then prove the differences under a skip strategy."""
    askable = [one for one in scenarios if not would_hang(one["pattern"])]
    tally = Tally(drafted=len(scenarios), unasked=len(scenarios) - len(askable))
    findings: list[Finding] = []
    doubtful: list[tuple[Finding, Json]] = []
    for scenario in answered(askable):
        if scenario["expected"].get("error") in _NO_ANSWERS:
            tally.unanswered += 1
            continue
        one = examine(scenario)
        tally.features.update(features(scenario))
        if one.needs_proof:
            doubtful.append((one, scenario))
        else:
            findings.append(one)
    questions = [beginnings(scenario) for _, scenario in doubtful]
    answers = _ask_for_proof([question for several in questions for question in several])
    for (one, scenario), several in zip(doubtful, chunks(answers, [len(q) for q in questions]), strict=True):
        findings.append(prove(one, scenario, several, _ask_for_proof))
        tally.proven += not findings[-1].is_open
    for one in findings:
        tally.count(one)
    return tally, findings


def _ask_for_proof(questions: Sequence[Json]) -> list[Json]:
    """Return the answers; ask once more where the library has taken too long, as the machine may have been busy."""
    answers = answered(questions, MATCHES_MAX)
    late = [place for place, one in enumerate(answers) if one["expected"].get("error") == "Hang"]
    for place, again in zip(late, answered([questions[place] for place in late], MATCHES_MAX), strict=True):
        answers[place] = again
    return answers


def drafted(kind: str, seed: int, count: int) -> list[Json]:
    """Return scenarios of a seed.

    `random` are the first ones of the peer's generator; `richest` are the ones with most features, out of eight times
    as many; `small` are short patterns that combine many features; `nested` are groups that repeat inside groups that
    repeat.
    """
    if kind in ("small", "nested"):
        return (small if kind == "small" else nested)(seed, count)
    return draft(seed, count) if kind == "random" else richest(draft(seed, 8 * count), count)


def one_round(kind: str, seed: int, count: int) -> Tally:
    """Examine so many scenarios of a seed."""
    return examined(drafted(kind, seed, count))[0]


def run(kind: str, seeds: Iterable[tuple[int, int]], jobs: int, note: Callable[[int, Tally], None]) -> None:
    """Run every round, a pair of seed and count, in `jobs` processes; `note` is called as each ends."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(one_round, kind, seed, count): seed for seed, count in seeds}
        for future in as_completed(waiting):
            note(waiting[future], future.result())


# --------------------------------------------------------------------------------------------------------- the log


def build(kind: str) -> str:
    """Hash everything that an answer depends on.

    That is the project, this package, the scenarios' package, the oracle, the peer, and the kind of scenarios.
    """
    digest = hashlib.sha256(kind.encode())
    ours = ("cep", "tests/conformance", "tests/fuzz", "tests/oracle")
    folders = [*(ROOT / folder for folder in ours), PEER]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".java")):
        digest.update(str(path.relative_to(ROOT if path.is_relative_to(ROOT) else PEER)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read_log(log: Path) -> tuple[str, dict[int, Tally]]:
    """Return the build of a log and its rounds by seed; "" and an empty dict if the log does not exist."""
    if not log.exists():
        return "", {}
    first, *lines = (json.loads(line) for line in log.read_text().splitlines())
    return str(first["build"]), {int(line["seed"]): _tally(line) for line in lines}


def _tally(line: Json) -> Tally:
    total = Tally()
    for part in fields(Tally):
        setattr(total, part.name, type(getattr(total, part.name))(line[part.name]))
    return total


def append(log: Path, of_build: str, seed: int, tally: Tally) -> None:
    """Add a round; the first one names the build."""
    with log.open("a") as file:
        if file.tell() == 0:
            file.write(json.dumps({"build": of_build}) + "\n")
        counts = {part.name: getattr(tally, part.name) for part in fields(Tally)}
        file.write(json.dumps({"seed": seed, **counts}) + "\n")
