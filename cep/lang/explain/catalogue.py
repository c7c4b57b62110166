"""Every code that a diagnostic can have: its title and the long form that `cep explain CODE` prints.

CEP1xx to CEP4xx are in `mistakes.py`, CEP5xx to CEP8xx here. A code keeps its meaning for ever. One that
is no longer given is not used again.

Codes outside of patterns: CEP5xx parameters, CEP6xx tests, CEP7xx lints, CEP8xx lists.

An example of every diagnostic, as `cep explain` shows it: the text, the place, the message.

`examples.txt` has a code on a line and its example indented below. Examples of mistakes in files are excerpts of golden
files, which a test compares.

Tested by: tests/lang/test_diagnostics.py, tests/cli/test_authoring.py.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from cep.lang.explain.mistakes import MISTAKES, Entry

FINDINGS: dict[str, Entry] = {
    # --------------------------------------------------------------------------------------------- parameters
    "CEP501": Entry("unknown parameter", "The rule gives an argument for a parameter that the pattern does not have."),
    "CEP502": Entry("parameter not given", "The rule has to give every parameter without a default."),
    "CEP503": Entry(
        "argument of another type",
        "The argument is not a value of the parameter's type. Give a decimal as text or as a number, with no more "
        "digits than the parameter has. Give a duration as text with a unit.",
    ),
    "CEP504": Entry(
        "argument out of bounds",
        "The argument is outside of the bounds that the pattern declares, or makes a repetition or window impossible.",
    ),
    "CEP505": Entry(
        "bad default or bound",
        "The default and the bounds of a parameter are constants of its type. The default lies within the bounds.",
    ),
    "CEP506": Entry(
        "parameter of this type",
        "A parameter is an int, decimal, float, duration, bool, string or enum, or a list. It is never null.",
    ),
    "CEP507": Entry("too many parameters", "A pattern has a limited number of parameters."),
    "CEP508": Entry(
        "parameter hides a field",
        "A bare name is a field or a parameter. With one name for both, a reader could not tell which is meant.",
    ),
    # -------------------------------------------------------------------------------------------------- tests
    "CEP601": Entry(
        "test of an unknown pattern",
        'A test names the pattern that it runs: `test "three declines" of card_testing { … }`. The pattern is in the '
        "same file, or in one that is checked with it.",
    ),
    "CEP602": Entry(
        "test without an expectation, or with an impossible one",
        "A test lists the expected results: `expect match …`, `expect matches 3`, `expect timeout …`, or "
        "`expect none`. "
        "`none` and a match on one key exclude each other.",
    ),
    "CEP603": Entry(
        "field that a test does not set",
        "The time of an event stands before its type. The fields of the key come from the label before the colon. "
        "Set the other fields with `field=value`.",
    ),
    "CEP604": Entry(
        "value of another type",
        "Values in tests are constants of the field's type. A decimal has at most the field's digits. Write a "
        "text with quotes, a symbol without. A duration has a unit. Write a time as the time since the start "
        "of the test.",
    ),
    "CEP605": Entry(
        "key of a test",
        'The label of a key is its value: `c1:` is the card "c1", `4711:` the account 4711. For a key of several '
        'fields, give each field where the key is first named: `p1(payer = "a", payee = "b"):`. Text fields may be '
        "left out: they are then `p1.payer`.",
    ),
    "CEP606": Entry(
        "expectation of an unknown key or value",
        "`on c1` names a key of the test. The names in braces are values that the pattern emits.",
    ),
    "CEP607": Entry(
        "time-out that is never emitted",
        "Partial matches whose time ran out need a pattern with `on timeout emit`. For other patterns, write "
        "`expect none`.",
    ),
    "CEP608": Entry(
        "events with one id",
        "An id distinguishes a repeated delivery from a new event, so each event of a test has its own id.",
    ),
    "CEP609": Entry("too many events", "A test has a limited number of events. Repetitions count."),
    "CEP610": Entry("events out of order", "A test has the events of a key in the order of their times."),
    # -------------------------------------------------------------------------------------------------- lints
    "CEP701": Entry(
        "condition that is never true",
        "The parts of the condition contradict each other, like `amount > 500 and amount < 2`. The pattern "
        "can never match, and this is hard to notice: a rule that never fires looks like a quiet day.",
    ),
    "CEP702": Entry(
        "unused name",
        "Nothing uses this name. An unused parameter is the worst case: a rule that sets it seems to change something. "
        "An unused variable without a condition takes any event, which is seldom meant.",
    ),
    "CEP703": Entry(
        "absence that excludes nothing",
        "In `a -> !b -> c` no event fulfils the condition of b, so the pattern means `a -> c`. The pattern "
        "does not exclude any event.",
    ),
    "CEP704": Entry(
        "pattern that is not tested both ways",
        "A test that expects a match shows that the pattern finds the fraud. A test that expects none shows that "
        "it leaves similar events alone. Most false alarms come from patterns that have only the first.",
    ),
    "CEP705": Entry(
        "window longer than the retention",
        "Events are kept as long as `retain` of their event type says. A window or a history that reaches "
        "further back sees only the stored events. Its counts and sums come out too small.",
    ),
    "CEP706": Entry(
        "keyed state above the budget",
        "A busy key needs more bytes for this pattern than the budget allows, by estimate. The bytes grow with the "
        "number of runs, the events that they remember, and the buckets of histories. `cep plan` shows each.",
    ),
    "CEP707": Entry(
        "partial matches without an end",
        "`a -> b`, `(a & b) -> c` and `a -> !b -> c` without a window wait for the last event forever. Each a stays "
        "in the state of its key, and under `in order` it keeps back the matches that start later. `within` ends the "
        "wait, as does a time in every step: `a ->[5 min] b`.",
    ),
    "CEP708": Entry(
        "steps that a cheap event parts",
        "After `,`, and between the repetitions of `strict`, the very next event of the key has to fit. An attacker "
        "who pays a cent in between ends the match. Write `->`, or say why other events are a reason against fraud.",
    ),
    "CEP709": Entry(
        "value that a cheap event makes known",
        "`not exists(payment over previous 90 d by country)` asks for a country that was never seen. An attacker who "
        "pays a cent there before makes it known. Count only past events of at least a smallest amount.",
    ),
    "CEP710": Entry(
        "silence that says too little",
        "`# allow(CODE): reason` silences one code on its line, or on the next line when it stands alone. It needs a "
        "reason, a known code, and a finding to silence. Otherwise it hides more than it tells.",
    ),
    "CEP711": Entry(
        "skip to the first event",
        "`skip to first x`, where each match begins with x, skips nothing: it acts like `skip to next`. SQL stops with "
        "an error there.",
    ),
    "CEP712": Entry(
        "condition on a label",
        "`is_fraud` says which events were fraud, and nobody knows that when the event comes. A rule that reads it is "
        "perfect on a history and finds nothing live. The name is only a guess: silence it if the value is known.",
    ),
    "CEP713": Entry(
        "step that a greedy loop leaves nothing for",
        "A greedy loop takes each event that fits it and gives none back. If each event that fits the next step fits "
        "the loop, too, the pattern never matches. SQL gives the last event to the next step.",
    ),
    "CEP714": Entry(
        "alternative that a shorter one hides",
        "The first complete alternative is a match, and the next one begins after it. A longer alternative that begins "
        "with the steps of a shorter one never comes to its end.",
    ),
    # -------------------------------------------------------------------------------- lists that may change
    "CEP801": Entry(
        "list that cannot be read",
        '`list blocked: string from "blocked.csv"` reads a file next to the pattern file. The file is UTF-8 text '
        "with one entry a line, or a .csv file with a header. In a .csv file the column with the list's name "
        "counts, otherwise the first column.",
    ),
    "CEP802": Entry(
        "entry of the wrong type",
        "An entry has the type that the list declares: a text, a whole number, a number with so many decimals, or a "
        "network. A network must not have bits after its prefix length: write 10.0.0.0/8. A list with a wrong entry is "
        "refused.",
    ),
    "CEP803": Entry(
        "entry too long",
        "An entry has a limited number of bytes. If entries are longer, this is probably another file than you meant.",
    ),
    "CEP804": Entry(
        "entries that are there twice",
        "A list holds each entry once. A second one has no effect. In files, repeated entries are counted, "
        "and not listed.",
    ),
}


CATALOGUE: dict[str, Entry] = MISTAKES | FINDINGS


def explain(code: str) -> str | None:
    """Return title and explanation of a code, None for an unknown code."""
    entry = CATALOGUE.get(code.upper())
    return None if entry is None else f"{code.upper()}: {entry.title}\n\n{entry.explanation}\n"


@cache
def examples() -> dict[str, str]:
    """Code to example."""
    examples: dict[str, list[str]] = {}
    code = ""
    for line in files("cep.lang.explain").joinpath("examples.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(" "):
            code = line
            examples[code] = []
        elif line:
            examples[code].append(line)
    return {code: "\n".join(lines) + "\n" for code, lines in examples.items()}
