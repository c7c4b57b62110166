"""Random patterns with a greedy loop that has a gap limit, on random events: the engine against the oracle.

`python -m tests.corpus.greedy --cases 20000` compares `advance` and the trace of `cep why` with the oracle and prints
each case that differs. The loop stands before each kind of step: the next event, an event some time later, an absence,
a group, an optional step, an alternative, a step with a time, another greedy loop; alone, in a group with a window, and
in a group that repeats. A condition may fit events that the loop takes as well, so that greed decides.
Tested by: tests/corpus/test_corpus.py
"""

import argparse
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

from cep.nfa.compile import problems
from tests.corpus.cases import Case
from tests.corpus.engines import events_of, pattern_of, schema
from tests.engine.bridge import batch_of, engine_answers, oracle_answers, program_of, whole
from tests.oracle.random_cases import Case as RandomCase
from tests.testing.test_explain import answers as trace_answers

EVENTS_MAX = 9
_TAILS = (
    ", b", " -> b", " ->> b", " -> !d -> b", ", !d -> b", " -> (b -> d)", " -> (b -> d){1,2} -> c", " -> b? -> d",
    " -> b*[GAP ms] greedy -> d", " -> (b | d)", " -> (b & d)", " ->[STEP ms] b", " ->[1 ms .. STEP ms] b",
    " ->[STEP ms] !b", " ->[GAP ms] !d", " -> !bWITHIN", ", !b",
)  # fmt: skip
_LOOPS = ("LOOP", "c -> LOOP", "c, LOOP", "c ->[1 ms .. STEP ms] LOOP", "(c -> LOOP within STEP ms)",
          "(c -> LOOP){1,2}", "(c? -> LOOP)", "(LOOP | c)")  # fmt: skip


def greedy_case(seed: int) -> Case:
    """Return the case of a seed: a pattern that the language accepts, and up to nine events."""
    random = Random(f"greedy/{seed}")
    for _ in range(50):
        case = Case("greedy", {"name": f"{seed}", "events": _events(random), "matches": [], **_pattern(random)})
        if not _is_refused(case):
            return case
    raise AssertionError(f"seed {seed}: the language has refused 50 patterns")


def _is_refused(case: Case) -> bool:
    try:
        pattern = pattern_of(case)
    except AssertionError:
        return True
    return bool(problems(pattern, schema()))


def _pattern(random: Random) -> dict[str, Any]:
    within = f" within {random.randint(8, 30)} ms"
    words = {"GAP": f"{random.randint(2, 6)}", "STEP": f"{random.randint(3, 9)}", "WITHIN": within}
    loop = f"a{random.choice(('+', '*', '{2,}', '{2,}', '{1,3}', '{2,3}'))}[{random.randint(2, 6)} ms]"
    strict = random.choice(("", "", "", " strict"))
    until = " until (kind == x)" if "}" not in loop.replace(",}", "") and random.random() < 0.2 else ""
    loop = f"{loop}{strict} greedy{until}"
    tail = random.choice(_TAILS)
    text = random.choice(_LOOPS) + tail
    for word, value in ({"LOOP": loop} | words).items():
        text = text.replace(word, value)
    if "WITHIN" not in tail and random.random() < 0.6:
        text += within
    raw: dict[str, Any] = {"pattern": text, "skip": _skip(random), "any": [], "where": {}}
    for name, more in (("b", 0.6), ("d", 0.2), ("a", 0.2)):
        if random.random() < more:
            raw["any"].append(name)
            raw["where"][name] = random.choice(_CONDITIONS[name])
    if random.random() < 0.2:
        raw["timeouts"] = []
    return raw


_CONDITIONS = {
    "a": ("kind == a or kind == x", "kind == a and v < 4"),
    "b": ("kind == a or kind == b", "v >= 2", "kind != x", "kind == a and event_time - last(a).event_time >= 3 ms"),
    "d": ("kind == d or kind == x", "kind == a or kind == d"),
}


def _skip(random: Random) -> str:
    skip = random.choice(("none", "none", "past last", "to next", "to first b", "to last a"))
    return skip if skip == "none" or random.random() < 0.8 else f"{skip} in order"


def _events(random: Random) -> str:
    letters, words, time_ms = random.choice(("aaabd", "aabcd", "aaabcdx", "acabb")), [], 0
    for number in range(random.randint(4, EVENTS_MAX)):
        time_ms += random.choice((0, 1, 1, 1, 2, 3, 5, 8))
        words.append(f"{random.choice(letters)}{number}:{random.randint(0, 5)}@{time_ms}")
    return " ".join(words)


def differences(seeds: range) -> Iterator[str]:
    """Compare `advance` and the trace with the oracle; yield the cases that differ."""
    for seed in seeds:
        case = greedy_case(seed)
        pattern, events = pattern_of(case), {case.id: events_of(case)}
        expected = oracle_answers(pattern, events)
        answers = engine_answers(program_of(schema(), pattern), whole(batch_of(schema(), events)))
        traced = trace_answers(RandomCase(seed, 0, pattern, events))
        for name, answer in (("the engine", answers), ("the trace", traced)):
            if answer != expected:
                lines = [f"{case.name}: {name} differs", case.pattern_text() + case.given["events"]]
                parts = ((answer.matches, expected.matches), (answer.timeouts, expected.timeouts))
                yield "\n".join([*lines, *(f"-{sorted(b - a)} +{sorted(a - b)}" for a, b in parts)])


def main() -> int:
    """Run cases until the number is reached; return exit code 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.greedy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    differing = 0
    for line in differences(range(options.seed, options.seed + options.cases)):
        differing += 1
        print(line, flush=True)
    print(f"{options.cases} cases, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
