"""Every code that a diagnostic can have: its title and the long form that `cep explain CODE` prints.

CEP1xx syntax, CEP2xx names, CEP3xx types, CEP4xx structure, CEP5xx parameters and their arguments, CEP6xx tests, CEP7xx
lints, CEP8xx lists. A code
keeps its meaning for ever; one that is no longer given is not used again.
Tested by: tests/lang/test_diagnostics.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation says why it is refused and what to write instead."""

    title: str
    explanation: str


CATALOGUE: dict[str, Entry] = {
    # ------------------------------------------------------------------------------------------------- syntax
    "CEP101": Entry(
        "character without a meaning",
        "Outside of texts and comments a pattern file has letters, digits, `_` and the operators of the language. "
        "A character that came along with copied text, like a typographic quote, has to be replaced.",
    ),
    "CEP102": Entry(
        "text cannot be read",
        'Text stands in double quotes on one line: "KP". Inside, \\" is a quote, \\\\ a backslash, \\n a line end and '
        "\\t a tab.",
    ),
    "CEP103": Entry(
        "number cannot be read",
        "Integers and decimals have 64 bits, so about 18 digits. `1_000_000` may be written with underscores, "
        "`1.5e3` is a float.",
    ),
    "CEP104": Entry(
        "duration cannot be read",
        "A duration is a number with a unit: `500 ms`, `30 s`, `10 min`, `2 h`, `30 d`, `1 week`; `5m` is five "
        "minutes. It is a whole number of milliseconds.",
    ),
    "CEP105": Entry(
        "something else was expected",
        "The text does not follow the grammar here. The message names what could stand at this place. "
        "The grammar is in patterns/README.md.",
    ),
    "CEP106": Entry(
        "clause given twice",
        "A pattern has one `seq`, one `where`, one `skip`, one `emit` and one `on timeout emit`. "
        "Several conditions stand under one `where`, several values under one `emit`, separated by commas.",
    ),
    "CEP107": Entry(
        "operators mixed without parentheses",
        "`a -> b | c` could mean two things, so it is refused: write `(a -> b) | c` in parentheses, or `a -> (b | c)`.",
    ),
    "CEP108": Entry(
        "nested too deep",
        "Groups and expressions may be nested up to a fixed depth, so that no file can exhaust the checker. "
        "Split the expression with `define`.",
    ),
    "CEP109": Entry(
        "not a declaration",
        "A file holds `event`, `list`, `define`, `pattern` and `import`. Anything else at this level is refused.",
    ),
    "CEP110": Entry(
        "file cannot be read",
        "A pattern file is UTF-8 text of at most 1 MiB. Larger ones are usually a wrong path.",
    ),
    "CEP111": Entry(
        "operator of another language",
        "Equality is `==`, inequality `!=`; conditions are joined with `and`, `or` and `not`.",
    ),
    "CEP112": Entry(
        "pattern without `seq`",
        "`seq` says which events a pattern looks for and in which order: `seq probe{3,} -> hit within 10 min`.",
    ),
    # -------------------------------------------------------------------------------------------------- names
    "CEP201": Entry(
        "unknown name",
        "A bare name in a condition is a field of the event under test, a parameter of the pattern, or, beside an "
        "enum, one of its symbols. Inside a definition only its own parameters and fields are in sight.",
    ),
    "CEP202": Entry(
        "unknown event type",
        "An entry of `where` begins with the event type: `hit: transaction  amount > 500`. Event types are "
        "declared with `event` in the file or in one that it imports.",
    ),
    "CEP203": Entry(
        "unknown field",
        "The event type of this variable has no such field.",
    ),
    "CEP204": Entry(
        "unknown variable",
        "The variables of a pattern are the names in its `seq`. A definition sees none of them; it is given one as an "
        "argument: `define far(a) = country != a.country`, used as `far(here)`.",
    ),
    "CEP205": Entry(
        "unknown function",
        "The functions are listed in patterns/README.md; further ones are declared with `define`.",
    ),
    "CEP206": Entry(
        "unknown list",
        'A list is declared with `list high_risk = ["KP", "IR"]`, or written in place: `country in ["KP", "IR"]`.',
    ),
    "CEP207": Entry(
        "name given twice",
        "Event types, lists, definitions and patterns each have their own names, over all files that are checked "
        "together. A definition cannot take the name of a function.",
    ),
    "CEP208": Entry(
        "import cannot be read",
        "An imported file is looked up relative to the file that imports it.",
    ),
    "CEP209": Entry(
        "imports form a circle",
        "A file cannot import one that imports it, directly or over others. Move what both need into a third file.",
    ),
    "CEP210": Entry(
        "definition uses itself",
        "Definitions are written out where they are used, so one that uses itself would never end.",
    ),
    "CEP211": Entry(
        "no current event",
        "`emit` speaks about a whole match. A field there needs the variable whose event is meant: `hit.amount`.",
    ),
    "CEP212": Entry(
        "unknown type",
        "The types are id, time, string, int, decimal(n), float, bool, duration and enum(a, b); `?` after it allows "
        "null.",
    ),
    "CEP213": Entry(
        "event type without identity",
        "Every event type has exactly one field of type id, which tells a repeated delivery from a new event, and "
        "exactly one of type time, called event_time. Neither can be null.",
    ),
    "CEP215": Entry(
        "one field name with two types",
        "All event types of a job share their columns, so a field name has one type everywhere (null aside).",
    ),
    "CEP216": Entry(
        "variable without an event type",
        "With several event types in sight each variable needs an entry in `where`: `a: transaction`.",
    ),
    # -------------------------------------------------------------------------------------------------- types
    "CEP301": Entry(
        "types do not fit",
        "Both sides of an operator have one type. Numbers are brought together without loss; a time minus a time is a "
        "duration; text is only compared with text, a symbol only with its enum.",
    ),
    "CEP302": Entry(
        "not a condition",
        "`where`, `until`, `if`, `and`, `or` and `not` need something that is true or false.",
    ),
    "CEP303": Entry(
        "comparison with null",
        "Null is unknown, and a comparison with the unknown is never true. Write `is null` or `is not null`.",
    ),
    "CEP304": Entry(
        "literal finer than the value",
        "A decimal(2) is never equal to 1.005, and `> 1.005` hides what happens at 1.00 and 1.01. "
        "Write the literal with the digits of the value.",
    ),
    "CEP305": Entry(
        "not a symbol of the enum",
        "The value beside an enum has to be one of its symbols, written without quotes.",
    ),
    "CEP306": Entry(
        "values without an order",
        "Text, symbols, ids and truth values can be equal or not, but not smaller or larger.",
    ),
    "CEP307": Entry(
        "wrong number of arguments",
        "The function or definition takes another number of arguments.",
    ),
    "CEP308": Entry(
        "too many decimals",
        "Decimals are exact 64-bit integers with at most 9 digits after the point. The product of two has the digits "
        "of both.",
    ),
    "CEP309": Entry(
        "number does not fit",
        "A decimal has 64 bits: with more digits after the point fewer are left before it.",
    ),
    "CEP310": Entry(
        "aggregate misused",
        "count, sum, avg, min, max, distinct and stddev run over the events bound to one variable: `count(probe)`, "
        "`sum(probe.amount)`. They do not stand inside each other, and bare fields have no place in them.",
    ),
    "CEP311": Entry(
        "expression too large",
        "Definitions are written out where they are used. What comes out has a limit, in size and in depth.",
    ),
    "CEP313": Entry(
        "not an item of a list",
        "A list holds constants of one kind: numbers, texts, durations or enum symbols.",
    ),
    "CEP314": Entry(
        "function of another event's field",
        "Functions of text, and of the hour or day of a time, are evaluated over whole batches, once for each "
        "different text. So they look at the event under test: test it in the condition of its own variable.",
    ),
    "CEP315": Entry(
        "regular expression that cannot be used",
        "`matches` takes the expressions of RE2, which run in time linear in the text: no back-references, no "
        "look-ahead and look-behind. It finds the expression anywhere; `^` and `$` bind it to the ends.",
    ),
    "CEP316": Entry(
        "constant that means nothing here",
        'A zone has a name of the time zone database, like "Europe/Paris" or "UTC". A network is written with its '
        'first address and its prefix length, like "10.0.0.0/8". Places in text count from 1.',
    ),
    "CEP317": Entry(
        "function of past events misused",
        "`count(transaction over 1 h where status == declined)` looks at the past events of the key from the event "
        "under test: it stands in a condition, not in `emit`, and not inside another aggregate. It names an event "
        "type, or a field of one.",
    ),
    "CEP318": Entry(
        "how far back is not said",
        "`over 1 h` is the last hour with the event under test, `over previous 30 d` leaves that event out, `over day "
        'in "Europe/Paris"` is since midnight there; also hour, week, month and year.',
    ),
    "CEP319": Entry(
        "approximate where only the exact form is kept",
        "`approx_distinct` and `approx_percentile` keep a 64th of their window at a time in few bytes. Such panes are "
        "of the key and of a length of time, `over 90 d`: there are none for a sub-key (`by`) or a calendar unit "
        "(`over month`). `distinct` and `percentile` can say both, exactly, and keep each event.",
    ),
    # ---------------------------------------------------------------------------------------------- structure
    "CEP401": Entry(
        "absence without a window",
        "`a -> !b` at the end can only be certain when a window closes. Without one the pattern would wait for ever. "
        "Add `within 5 min`, or let an event follow: `a -> !b -> c`.",
    ),
    "CEP402": Entry(
        "window that holds nothing",
        "Windows are half-open: `within W` holds while last − first < W. A window of 0 holds nothing.",
    ),
    "CEP403": Entry(
        "repetition of nothing",
        "In `(a?)+` the group can match without an event, so it could be repeated for ever.",
    ),
    "CEP404": Entry(
        "`greedy` in the wrong place",
        "`greedy` lets a repeated variable take as many events as it can. It has no meaning on a group, beside `any` "
        "(which tries every combination), or without a repetition.",
    ),
    "CEP405": Entry(
        "`until` on a bounded repetition",
        "`until` ends a repetition that has no maximum: `a+ until (…)`, `a* until (…)`, `a{2,} until (…)`.",
    ),
    "CEP406": Entry(
        "variable twice",
        "A variable stands at one place of the structure. For the same kind of event at two places use two names.",
    ),
    "CEP407": Entry(
        "variable that is bound later",
        "A condition is tested when its event arrives. It can speak of what is bound by then, not of what comes after "
        "it. Put the comparison into the condition of the later variable.",
    ),
    "CEP408": Entry(
        "variable that is never bound",
        "`!b` says that no b comes, so there is no event of b to speak of.",
    ),
    "CEP409": Entry(
        "bad repetition",
        "`{n}`, `{n,}` and `{n,m}` need whole numbers, the second at least 1 and not below the first.",
    ),
    "CEP410": Entry(
        "absence at the start",
        "A match begins with an event. `!b -> a` would have to know all of the past.",
    ),
    "CEP411": Entry(
        "absence that cannot be said",
        "An absence is of one variable, once: `!b`. It has no repetition and no place in `|` and `&`.",
    ),
    "CEP412": Entry(
        "pattern without an event",
        "Every element of the pattern may be left out. A match of nothing is never given, so any one event of any of "
        "them is a match; require the one that matters.",
    ),
    "CEP413": Entry(
        "gap without a repetition",
        "`b{2,}[5 min]` bounds the time between repetitions. For the time between two steps write `a ->[5 min] b`.",
    ),
    "CEP414": Entry(
        "`strict` or `any` in the wrong place",
        "`strict` (no gaps) and `any` (every combination) say how repetitions follow each other, so they need a "
        "repetition, and exclude each other.",
    ),
    "CEP415": Entry(
        "too many variables",
        "A pattern has a limited number of variables. Several small patterns are easier to test.",
    ),
    "CEP416": Entry(
        "window in the wrong place",
        "A sequence or group has one window in time; a window in events stands at the end of `seq`.",
    ),
    "CEP417": Entry(
        "key does not fit an event type",
        "Events are partitioned by the key, so every event type of the pattern has the key fields, and their values "
        "can be compared exactly.",
    ),
    "CEP418": Entry(
        "skip to an unknown variable",
        "`skip to first x` and `skip to last x` need a variable that a match binds.",
    ),
    "CEP419": Entry(
        "timeout without a window",
        "`on timeout emit` speaks of partial matches whose window closed. Without a window none ever does.",
    ),
    "CEP420": Entry(
        "repetition without an end",
        "A repetition without a maximum and without a window keeps its events for as long as the job runs. "
        "Add `within`, `until` or a maximum.",
    ),
    "CEP421": Entry(
        "choice that can match nothing",
        "Each element of `a | b` and `a & b` matches at least one event. Make the whole choice optional instead: "
        "`(a | b)?`.",
    ),
    "CEP422": Entry(
        "step time that holds nothing",
        "`a ->[1 min .. 5 min] b` needs a lower bound below the upper one.",
    ),
    "CEP426": Entry(
        "match that makes no whole event",
        "`produce hop` turns each match into an event `hop`: the values that the pattern emits are its fields, so each "
        "has the name and the type of a field, and every field that cannot be null is emitted. The id and the time "
        "are those of the match.",
    ),
    "CEP427": Entry(
        "patterns that feed each other in a circle",
        "A pattern that reads what another one produces comes after it. On a circle there is no such order; and each "
        "pattern of a chain costs another pass over the events, so chains have a limit.",
    ),
    "CEP423": Entry(
        "too many values",
        "A pattern emits a limited number of values: which of them are null is kept in the bits of one number. "
        "An alert with more is not read either.",
    ),
    "CEP424": Entry(
        "nothing can follow this group",
        "`(a -> !b within 5 min) -> c`: the group ends when its window closes, which is no event that c could follow. "
        "Put what follows into a pattern of its own, or the window around everything: `a -> !b -> c within 5 min`.",
    ),
    "CEP425": Entry(
        "automaton too large",
        "The structure is written out as an automaton: a group that repeats stands there once for each repetition, and "
        "`a & b & c` once for each order. States, ways to go on from one, and what a run remembers have limits. "
        "`cep plan` shows the automaton. Count with a loop over one variable instead, `a{100}`, which is never written "
        "out, or split the pattern.",
    ),
    # --------------------------------------------------------------------------------------------- parameters
    "CEP501": Entry("unknown parameter", "The rule gives an argument for a parameter that the pattern does not have."),
    "CEP502": Entry("parameter not given", "A parameter without a default has to be given by the rule."),
    "CEP503": Entry(
        "argument of another type",
        "The argument is not a value of the parameter's type. Decimals are given as text or numbers with no more "
        "digits than the parameter has, durations as text with a unit.",
    ),
    "CEP504": Entry(
        "argument out of bounds",
        "The argument is outside of the bounds that the pattern declares, or makes a repetition or window impossible.",
    ),
    "CEP505": Entry(
        "bad default or bound",
        "The default and the bounds of a parameter are constants of its type, and the default is within the bounds.",
    ),
    "CEP506": Entry(
        "parameter of this type",
        "Parameters are int, decimal, float, duration, bool, string or an enum, and never null.",
    ),
    "CEP507": Entry("too many parameters", "A pattern has a limited number of parameters."),
    "CEP508": Entry(
        "parameter hides a field",
        "A bare name is a field or a parameter; with one name for both the reader could not tell which.",
    ),
    # -------------------------------------------------------------------------------------------------- tests
    "CEP601": Entry(
        "test of an unknown pattern",
        'A test names the pattern that it runs: `test "three declines" of card_testing { … }`. The pattern is in the '
        "file or in one that is checked with it.",
    ),
    "CEP602": Entry(
        "test that expects nothing, or what cannot be",
        "A test says what comes out: `expect match …`, `expect matches 3`, `expect timeout …`, or `expect none`. "
        "`none` and a match on one key exclude each other.",
    ),
    "CEP603": Entry(
        "field that a test does not set",
        "The time of an event stands before its type, and the fields of the key come from the label before the colon. "
        "The other fields are set with `field=value`.",
    ),
    "CEP604": Entry(
        "value of another type",
        "Values in tests are constants of the field's type: decimals with at most its digits, texts in quotes, symbols "
        "without, durations with a unit. A time is written as the time since the start of the test.",
    ),
    "CEP605": Entry(
        "key of a test",
        'The label of a key is its value: `c1:` is the card "c1", `4711:` the account 4711. A key of several fields is '
        'given field by field where it is first named, `p1(payer = "a", payee = "b"):`; its text fields may be '
        "left out and are then `p1.payer`.",
    ),
    "CEP606": Entry(
        "expectation of an unknown key or value",
        "`on c1` names a key of the test, and the names in braces are those that the pattern emits.",
    ),
    "CEP607": Entry(
        "time-out that is never emitted",
        "Partial matches whose time ran out are emitted by patterns with `on timeout emit`. For others, `expect none`.",
    ),
    "CEP608": Entry(
        "events with one id",
        "An id tells a repeated delivery from a new event, so each event of a test has its own.",
    ),
    "CEP609": Entry("too many events", "A test has a limited number of events, repetitions counted."),
    # -------------------------------------------------------------------------------------------------- lints
    "CEP701": Entry(
        "condition that is never true",
        "The parts of the condition contradict each other, like `amount > 500 and amount < 2`, so the pattern can "
        "never match, and nobody would notice: a rule that never fires looks like a quiet day.",
    ),
    "CEP702": Entry(
        "unused name",
        "Nothing refers to it. A parameter that is not used is the worst of them: a rule that sets it seems to change "
        "something. A variable without a condition that nothing speaks of is bound to any event: seldom meant.",
    ),
    "CEP703": Entry(
        "absence that excludes nothing",
        "`a -> !b -> c` where no event fulfils the condition of b is `a -> c`; the exclusion that somebody relies on "
        "is not there.",
    ),
    "CEP704": Entry(
        "pattern that is not tested both ways",
        "A test that expects a match shows that the pattern finds what it is for, one that expects none that it leaves "
        "alone what looks like it. Most false alarms come from patterns that have only the first.",
    ),
    "CEP705": Entry(
        "window longer than the retention",
        "Events are kept as long as `retain` of their event type says. A window, or a history, that reaches further "
        "back sees only what is still there, so counts and sums come out too small.",
    ),
    "CEP706": Entry(
        "keyed state above the budget",
        "The estimated bytes that a busy key needs for the pattern are above the budget. What grows is the number of "
        "runs, of events that they remember, and of buckets of histories: `cep plan` shows each.",
    ),
    "CEP710": Entry(
        "silence that says too little",
        "`# allow(CODE): reason` silences one code on its line, or on the next line when it stands alone. Without a "
        "reason, with an unknown code, or where nothing is found, it hides more than it tells.",
    ),
    # -------------------------------------------------------------------------------- lists that may change
    "CEP801": Entry(
        "list that cannot be read",
        '`list blocked: string from "blocked.csv"` reads a file beside the one that names it: UTF-8 text with an entry '
        "a line, or a .csv file with a header, whose column of the list's name counts, else its first one.",
    ),
    "CEP802": Entry(
        "entry of the wrong type",
        "An entry is what the list is declared to be of: a text, a whole number, a number with so many decimals, or a "
        "network with no bits behind its prefix length, like 10.0.0.0/8. A list with a wrong entry is not taken.",
    ),
    "CEP803": Entry("entry too long", "An entry has a limited number of bytes; who has more has given another file."),
    "CEP804": Entry(
        "entries that are there twice",
        "A list holds each entry once; what comes again changes nothing. In files it is counted, not told.",
    ),
}


def explain(code: str) -> str | None:
    """Title and explanation of a code, None if there is no such code."""
    entry = CATALOGUE.get(code.upper())
    return None if entry is None else f"{code.upper()}: {entry.title}\n\n{entry.explanation}\n"
