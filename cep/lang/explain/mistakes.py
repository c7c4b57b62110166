"""Codes of mistakes in a pattern: CEP1xx syntax, CEP2xx names, CEP3xx types, CEP4xx structure.

One code of a diagnostic: its title and its long form.

Tested by: tests/lang/test_diagnostics.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation gives the reason for the refusal and the right way to write it."""

    title: str
    explanation: str


MISTAKES: dict[str, Entry] = {
    # ------------------------------------------------------------------------------------------------- syntax
    "CEP101": Entry(
        "character without a meaning",
        "Outside of texts and comments, a pattern file has letters, digits, `_` and the operators of the language. "
        "Copied text often brings other characters along, like typographic quotes. Replace them. Characters that "
        "cannot be seen, such as control characters and marks of direction, are refused in texts and comments too: "
        "with them a pattern can look different from its meaning.",
    ),
    "CEP102": Entry(
        "text cannot be read",
        'A write text in double quotes on one line: "KP". Inside it, write \\" for a quote, \\\\ for a backslash, '
        "\\n for a line end and \\t for a tab.",
    ),
    "CEP103": Entry(
        "number cannot be read",
        "Integers and decimals have 64 bits, which is about 18 digits. `1_000_000` is the same as `1000000`. "
        "`1.5e3` is a float.",
    ),
    "CEP104": Entry(
        "duration cannot be read",
        "A duration is a number with a unit: `500 ms`, `30 s`, `10 min`, `2 h`, `30 d`, `1 week`. `5m` is five "
        "minutes. A duration is a whole number of milliseconds.",
    ),
    "CEP105": Entry(
        "unexpected text",
        "The text does not follow the grammar here. The message names the texts that are possible at this place. "
        "`cep docs grammar` prints the grammar.",
    ),
    "CEP106": Entry(
        "clause given twice",
        "A pattern has one `seq`, one `where`, one `skip`, one `emit` and one `on timeout emit`. "
        "Write several conditions under one `where`, and several values under one `emit`, separated by commas.",
    ),
    "CEP107": Entry(
        "operators mixed without parentheses",
        "`a -> b | c` could mean two things. Write `(a -> b) | c` or `a -> (b | c)`.",
    ),
    "CEP108": Entry(
        "nested too deep",
        "Groups and expressions may be nested up to a fixed depth, so that no file can exhaust the checker. "
        "Split the expression with `define`.",
    ),
    "CEP109": Entry(
        "not a declaration",
        "A file holds `event`, `list`, `define`, `pattern`, `test` and `import`. Other texts are not possible "
        "at this level.",
    ),
    "CEP110": Entry(
        "file cannot be read",
        "A pattern file is UTF-8 text of at most 1 MiB. If the file is larger, the path is probably wrong.",
    ),
    "CEP111": Entry(
        "operator of another language",
        "Equality is `==` and inequality is `!=`. Join conditions with `and`, `or` and `not`.",
    ),
    "CEP112": Entry(
        "pattern without `seq`",
        "`seq` says which events a pattern looks for, and in which order: `seq probe{3,} -> hit within 10 min`.",
    ),
    # -------------------------------------------------------------------------------------------------- names
    "CEP201": Entry(
        "unknown name",
        "A bare name in a condition is a field of the event under test or a parameter of the pattern. Next to "
        "an enum it can be one of its symbols. A definition sees only its own parameters and the fields.",
    ),
    "CEP202": Entry(
        "unknown event type",
        "An entry of `where` begins with the event type: `hit: transaction  amount > 500`. Declare event types with "
        "`event`, in the file or in one that it imports.",
    ),
    "CEP203": Entry("unknown field", "The event type of this variable does not have this field."),
    "CEP204": Entry(
        "unknown variable",
        "The variables of a pattern are the names in its `seq`. A definition cannot use them. Give it a "
        "variable as an argument: declare `define far(a) = country != a.country`, and use it as `far(here)`.",
    ),
    "CEP205": Entry(
        "unknown function",
        "`cep docs expressions` lists the functions. Declare further ones with `define`.",
    ),
    "CEP206": Entry(
        "unknown list",
        'Declare a list with `list high_risk = ["KP", "IR"]`, or write it in place: `country in ["KP", "IR"]`.',
    ),
    "CEP207": Entry(
        "name given twice",
        "Each event type, list, definition and pattern has a name of its own, over all files that are checked "
        "together. A definition cannot have the name of a function.",
    ),
    "CEP208": Entry(
        "import cannot be read",
        "The path of an import is relative to the file that imports.",
    ),
    "CEP209": Entry(
        "imports form a circle",
        "A file cannot import a file that imports it, directly or through others. Move the common "
        "declarations into a third file.",
    ),
    "CEP210": Entry(
        "definition uses itself",
        "A definition is written out where it is used. One that uses itself would never end.",
    ),
    "CEP211": Entry(
        "no current event",
        "`emit` is about a whole match, not about one event under test. Name the variable whose event you mean: "
        "`hit.amount`.",
    ),
    "CEP212": Entry(
        "unknown type",
        "The types are id, time, string, int, decimal(n), float, bool, duration and enum(a, b). A `?` after the type "
        "allows null.",
    ),
    "CEP213": Entry(
        "event type without identity",
        "Every event type has exactly one field of type id, and a field `event_time` of type time. The id "
        "distinguishes a repeated delivery from a new event. Both must not be null. Other fields of type time "
        "are values, and may be "
        "null: `opened time?`.",
    ),
    "CEP215": Entry(
        "one field name with two types",
        "All event types of a job share their columns, so a field name has the same type everywhere. It may "
        "be nullable in some of them.",
    ),
    "CEP216": Entry(
        "variable without an event type",
        "The pattern has several event types, so each variable needs an entry in `where`: `a: transaction`.",
    ),
    "CEP217": Entry(
        "field that cannot order events",
        "`order by` in an event type names one of its fields, of type int, decimal(n), duration or time: a sequence "
        "number, or the offset of the system that wrote the event. It orders events of one time, before arrival does.",
    ),
    # -------------------------------------------------------------------------------------------------- types
    "CEP301": Entry(
        "types do not fit",
        "Both sides of an operator need the same type. Numbers are converted if the value stays exact. A time minus a "
        "time is a duration. Compare text only with text, and a symbol only with its enum.",
    ),
    "CEP302": Entry(
        "not a condition",
        "`where`, `until`, `if`, `and`, `or` and `not` need something that is true or false.",
    ),
    "CEP303": Entry(
        "comparison with null",
        "Null means unknown, and a comparison with it is never true. Write `is null` or `is not null`.",
    ),
    "CEP304": Entry(
        "literal finer than the value",
        "A decimal(2) is never equal to 1.005, and with `> 1.005` a reader cannot see that 1.01 is the first value "
        "above. Write the literal with the digits of the value.",
    ),
    "CEP305": Entry(
        "not a symbol of the enum",
        "The value next to an enum has to be one of its symbols, written without quotes.",
    ),
    "CEP306": Entry(
        "values without an order",
        "Texts, symbols, ids and truth values can be equal or not. They cannot be smaller or larger.",
    ),
    "CEP307": Entry(
        "wrong number of arguments",
        "The function or definition takes another number of arguments. The message says how many.",
    ),
    "CEP308": Entry(
        "too many decimals",
        "Decimals are exact 64-bit integers: 18 digits, of which as many may be after the point as the type says. A "
        "product has the digits of both factors after the point together.",
    ),
    "CEP309": Entry(
        "number does not fit",
        "A decimal has 64 bits. The more digits stand after the point, the fewer are left before it.",
    ),
    "CEP310": Entry(
        "aggregate misused",
        "count, sum, avg, min, max, distinct and stddev run over the events of one variable: `count(probe)`, "
        "`sum(probe.amount)`. Name the variable of each field, and do not put one aggregate inside another.",
    ),
    "CEP311": Entry(
        "expression too large",
        "Definitions are written out where they are used. The result has a limit in size and in depth.",
    ),
    "CEP313": Entry(
        "not an item of a list",
        "A list holds constants of one kind: numbers, texts, durations or enum symbols.",
    ),
    "CEP314": Entry(
        "function of another event's field",
        "Functions of text, and of the hour or day of a time, only look at the event under test. The engine evaluates "
        "them over whole batches, once for each different text. Test the field in the condition of its own variable.",
    ),
    "CEP315": Entry(
        "regular expression that cannot be used",
        "`matches` takes the expressions of RE2, whose time grows with the text alone. They do not include "
        "back-references, look-ahead or look-behind assertions. The expression may match anywhere. `^` and "
        "`$` bind it to the ends.",
    ),
    "CEP316": Entry(
        "constant that means nothing here",
        'A zone has a name of the time zone database, like "Europe/Paris" or "UTC". A network is its first address '
        'with its prefix length, like "10.0.0.0/8". Places in text count from 1.',
    ),
    "CEP317": Entry(
        "function of past events misused",
        "`count(transaction over 1 h where status == declined)` looks back from the event under test, at events with "
        "the same key. In `emit` it looks back from the last event of the match. It cannot be inside another "
        "aggregate. It names an event type, or a field of one.",
    ),
    "CEP318": Entry(
        "how far back is not said",
        "`over 1 h` is the last hour, with the event under test. `over previous 30 d` leaves that event out. `over day "
        'in "Europe/Paris"` is since midnight there. The other calendar units are hour, week, month and year.',
    ),
    "CEP319": Entry(
        "approximate where only the exact form is kept",
        "`approx_distinct` and `approx_percentile` keep a few bytes for each 64th of their window. They need a length "
        "of time, like `over 90 d`. They do not work for a sub-key (`by`) or a calendar unit (`over month`). "
        "For these, use `distinct` and `percentile`: they are exact, and keep each event.",
    ),
    "CEP320": Entry(
        "value where a rule has a token",
        "A field of type `pan` or `sensitive` is replaced by a token while events are decoded. A rule never "
        "sees its value, so a literal that is not a token is never equal to it. The literal would also bring "
        "a card number into a file of rules. "
        "Write the token, which alerts and `cep why` show. Lists of tokens work as other lists do.",
    ),
    "CEP321": Entry(
        "look into a token",
        "The token of a card number does not contain its digits, so a function of text cannot be applied to "
        "it. Let the producer send the part that a rule needs as a separate field: the issuer's first digits, "
        "the domain of an address.",
    ),
    # ---------------------------------------------------------------------------------------------- structure
    "CEP401": Entry(
        "absence without a window",
        "`a -> !b` at the end is only certain when a window closes. Without one the pattern would wait forever. "
        "Add `within 5 min`, or let an event follow: `a -> !b -> c`.",
    ),
    "CEP402": Entry(
        "window that holds nothing",
        "Windows are half-open: `within W` holds while last − first < W. A window of 0 holds nothing.",
    ),
    "CEP403": Entry(
        "repetition of nothing",
        "In `(a?)+` the group can match without an event, so it could be repeated forever. Leave out the `?` inside "
        "or the `+` outside.",
    ),
    "CEP404": Entry(
        "`greedy` in the wrong place",
        "`greedy` lets a repeated variable take as many events as it can. It has no meaning on a group, "
        "without a repetition, or together with `any`, which tries every combination.",
    ),
    "CEP405": Entry(
        "`until` on a bounded repetition",
        "`until` ends a repetition without a maximum: `a+ until (…)`, `a* until (…)`, `a{2,} until (…)`.",
    ),
    "CEP406": Entry(
        "variable twice",
        "A variable stands at one place of the structure. For the same kind of event at two places, use two names.",
    ),
    "CEP407": Entry(
        "variable that is bound later",
        "A condition is tested when its event arrives. It can use only variables that are bound by then. "
        "Put the comparison into the condition of the later variable.",
    ),
    "CEP408": Entry(
        "variable that is never bound",
        "`!b` says that no b comes, so an event of b does not exist.",
    ),
    "CEP409": Entry(
        "bad repetition",
        "`{n}`, `{n,}` and `{n,m}` need whole numbers. The second is at least 1, and not below the first.",
    ),
    "CEP410": Entry(
        "absence at the start",
        "A match begins with an event. `!b -> a` would have to know all of the past.",
    ),
    "CEP411": Entry(
        "absence that cannot be said",
        "An absence has one variable, once: `!b`. It cannot be repeated, and cannot stand in `|` or `&`.",
    ),
    "CEP412": Entry(
        "pattern without an event",
        "Every element of the pattern may be left out. An empty match is never given, so any one event that "
        "fits any element is a match. Require the element that matters.",
    ),
    "CEP413": Entry(
        "gap without a repetition",
        "`b{2,}[5 min]` bounds the time between repetitions. For the time between two steps, write `a ->[5 min] b`.",
    ),
    "CEP414": Entry(
        "`strict` or `any` in the wrong place",
        "`strict` (no gaps) and `any` (every combination) say how repetitions follow each other. They need a "
        "repetition, and exclude each other.",
    ),
    "CEP415": Entry(
        "too many variables",
        "A pattern has a limited number of variables. Several small patterns are easier to test.",
    ),
    "CEP416": Entry(
        "window in the wrong place",
        "A sequence or group has one window in time. A window in events stands at the end of `seq`.",
    ),
    "CEP417": Entry(
        "key does not fit an event type",
        "Events are grouped by the key, so every event type of the pattern needs the key fields, and their "
        "values can be "
        "compared exactly.",
    ),
    "CEP418": Entry(
        "skip to an unknown variable",
        "`skip to first x` and `skip to last x` need a variable that a match binds.",
    ),
    "CEP419": Entry(
        "timeout without a window",
        "`on timeout emit` is for partial matches whose window has closed. Without a window this never happens.",
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
        "In `a ->[1 min .. 5 min] b` the first time has to be below the second.",
    ),
    "CEP423": Entry(
        "too many values",
        "A pattern emits a limited number of values: one number has a bit for each, which says whether it is null. "
        "An alert with more would not be read either.",
    ),
    "CEP424": Entry(
        "nothing can follow this group",
        "In `(a -> !b within 5 min) -> c` the group ends when its window closes. The end of a window is not "
        "an event, so c cannot follow it. Put c into its own pattern, or the window around everything: "
        "`a -> !b -> c within 5 min`.",
    ),
    "CEP425": Entry(
        "automaton too large",
        "The structure is written out as an automaton. A group that repeats stands there once for each repetition, and "
        "`a & b & c` once for each order. The number of states, of transitions from a state, and of values "
        "that a run remembers is limited. `cep plan` shows the automaton. Repeat a single variable instead, "
        "`a{100}`, which is never written "
        "out, or split the pattern.",
    ),
    "CEP426": Entry(
        "match that makes no whole event",
        "`produce hop` turns each match into an event `hop`. The values that the pattern emits are its "
        "fields. Each value therefore has the name and the type of a field, and the pattern emits every field "
        "that cannot be null. The event has the id and the time of the match.",
    ),
    "CEP427": Entry(
        "patterns that feed each other in a circle",
        "A pattern that reads the events of another one comes after it. In a circle this order does not exist. Chains "
        "have a limit, too, because each pattern of a chain costs another pass over the events.",
    ),
    "CEP428": Entry(
        "`greedy` at the end",
        "A match is emitted as soon as its last event comes. At the end of a pattern no event shows that a "
        "loop is over, so each event of the loop completes a match, greedy or not. To get one match with all "
        "events, wait until no further event can come: `a{2,}[5 min] ->[5 min] !other`, where `other` has "
        "the condition of `a`. With "
        "`strict` write `a{2,} strict, !other`; the next event decides.",
    ),
}
