"""A seed → the text of a random valid pattern file, untidily laid out, with comments in odd places.

The text follows the grammar and gets its types on the way, so that it passes the check without an error.
"""

from random import Random

FIELDS = """
event t {
  id id  event_time time, k string  a decimal(2)  b decimal(2)?  # money
  n: int; m int?  x float  y float?  s enum(red, green, blue)   s2 enum(up,down)?
  c string?  f bool  g bool?
}
event u { id id event_time time k string a decimal(2) c string? f bool }
event made { made_id id event_time time r1 decimal(2)?  r2 int? }
"""
_UNITS = ("ms", "s", "min", "h", "d")


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.variables: list[tuple[str, bool]] = []
        self.types: dict[str, str] = {}
        self.negated: set[str] = set()
        self.times_out = False

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def duration(self) -> str:
        return f"{self.random.randint(1, 90)}{self.pick('', ' ')}{self.random.choice(_UNITS)}"

    # ------------------------------------------------------------------------------------------- structure

    def variable(self) -> str:
        name = f"v{len(self.variables)}"
        self.variables.append((name, False))
        return name

    def suffix(self, loop: bool) -> str:
        kind = self.pick("", "", "+", "{2}", "{2,}", "{ 1 , 3 }", "{low,}") if loop else ""
        words = ""
        if kind and self.chance(0.3):
            words += f"[{self.duration()}]"
        if kind and self.chance(0.3):
            words += self.pick(" greedy", " strict", " any", " strict greedy")
        if kind in ("+", "{2,}", "{low,}") and self.chance(0.3):
            words += f" until ({self.condition(2, 'both')})"
        return kind + words

    def element(self, depth: int) -> str:
        if depth > 0 and self.chance(0.25):
            body = self.sequence(depth - 1) if self.chance(0.6) else self.choice()
            repeat = self.pick("", "", "{2}", "{1,2}", "+")
            return f"({body}){repeat}"
        return self.variable() + self.suffix(loop=True)

    def choice(self) -> str:
        return self.pick(" | ", "&").join(self.variable() for _ in range(1)) + self.pick(" | ", " & ") + self.variable()

    def sequence(self, depth: int) -> str:
        parts = [self.element(depth)]
        for _ in range(self.random.randint(0, 3)):
            gap = self.pick("", "", "", f"[{self.duration()}]", "[0 ms .. 5 min]")
            if self.chance(0.15):
                name = self.variable()
                self.negated.add(name)
                parts.append(f"-> !{name} -> {self.element(depth)}")
            else:
                parts.append(f"{self.pick(',', '->', '->>')}{gap} {self.element(depth)}")
        return self.space().join(parts)

    # ------------------------------------------------------------------------------------------ expressions

    def space(self) -> str:
        """Return the separator between two tokens: mostly a space, now and then a line end or a comment."""
        roll = self.random.random()
        if roll < 0.75:
            return " "
        if roll < 0.9:
            return "\n   "
        return self.pick("  # why\n ", "\n# a line\n\n", "\n\n## not a doc\n  ", "   ## behind\n")

    def number(self, depth: int, event: str) -> str:
        if depth <= 0 or self.chance(0.4):
            mine = ("a",) if event != "t" else ("a", "b", "n", "m")
            return self.pick(*mine, "10", "2.50", "1_000", "-3", "abs(a)", "least(a, 5)")
        left, right = self.number(depth - 1, event), self.number(0, event)
        return f"({left}{self.space()}{self.pick('+', '-')} {right})" if self.chance(0.4) else f"{left} + {right}"

    def condition(self, depth: int, event: str) -> str:
        if depth > 0 and self.chance(0.5):
            op = self.pick("and", "or")
            parts = [self.wrapped(depth - 1, event) for _ in range(self.random.randint(2, 4))]
            return f"{self.space()}{op} ".join(parts)
        return self.simple(depth, event)

    def wrapped(self, depth: int, event: str) -> str:
        inner = self.condition(depth, event)
        return self.pick(f"({inner})", f"not ({inner})") if self.chance(0.3) or " or " in inner else inner

    def simple(self, depth: int, event: str) -> str:
        options = [
            f"{self.number(depth, event)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.number(0, event)}",
            f"a{self.space()}between 1 and {self.number(0, event)}",
            "a not between -1.00 and 2",
            'c in ["KP" , "IR",]',
            "c not in bad",
            'c like "A%"',
            "c is not null",
            "f",
            "not f",
            'starts_with(c,"A")',
            f"abs(event_time - event_time) < {self.duration()}",
            f"(if f then a else {self.number(0, event)}) > 1",
            "small(5)",
            f"{self.pick('round', 'floor', 'ceil', 'abs')}( {self.number(0, event)} ) < 5",
            f"{self.pick('least', 'greatest', 'min', 'max')}({self.number(0, event)},a) >= 2",
            f'{self.pick("lower", "upper")}(substring( c,1 , 2)) == "ab" or length(c) > 3',
            f'{self.pick("starts_with", "ends_with", "contains")}(c , "x") and not in_cidr(c, "10.0.0.0/8")',
            'c matches "^[0-9]+$" or c not like "a%"',
            f'{self.pick("hour", "weekday")}(event_time, "Europe/Paris") in [1,2]',
            'event_time - date(event_time, "UTC") < 2 h',
        ]
        if event == "t":
            options += ["s == red", "s in [red,green]", "x > 0.1 * y", "n % 2 == 1", "s2 is null", "sqrt(x) < 1.5e3"]
            options += ["distance_km(x, y, 1e0, x) > 5e0", "round( y, 2) == 1.5e0"]
        return self.random.choice(options)

    # ------------------------------------------------------------------------------------------ declarations

    def pattern(self, number: int) -> str:
        self.variables, self.types, self.negated = [], {}, set()
        # `until` sees the fields of every event type of the pattern; `t` and `u` share the fields of "both".
        structure = self.sequence(2)
        if "greedy" in structure:  # the language refuses it at the end
            structure += f"{self.space()}-> {self.variable()}"
        window = f"{self.space()}within {self.pick('window', self.duration(), '20 events')}"
        lines = [f"{structure}{window}"]
        entries = []
        for name, _ in self.variables:
            event = self.pick("t", "t", "u")
            self.types[name] = event
            condition = self.condition(3, event) if self.chance(0.8) else ""
            entries.append(f"{name}:{self.space()}{event}{self.space()}{condition}{self.pick('', '', ',')}")
        where = f"where{self.space()}" + self.space().join(entries)
        bound = next(name for name, _ in self.variables if name not in self.negated)
        skip = self.pick("skip none", "skip to next", "skip past last", f"skip to first {bound} in order", "")
        emit = self.pick("", f"emit r1 = {bound}.a,{self.space()}r2 = count({bound})", f"emit z = first({bound}).c")
        over = self.pick("", "", "over all")
        timeout = f"on timeout emit q = {bound}.a" if self.chance(0.2) and "events" not in window else ""
        produce = self.pick("", f"produce{self.space()}made") if emit.startswith("emit r1") else ""
        self.times_out = bool(timeout)
        clauses = [f"seq {lines[0]}", where, *(c for c in (skip, over, emit, produce, timeout) if c)]
        head = self.pick("", "## What it is for.\n##   second line\n", "# plain\n")
        params = "(low: int = 2 in 1..20,window: duration = 10 min, limit : decimal=1.50)"
        body = self.space().join(clauses)
        return f"{head}pattern p{number}{params}{self.pick(' ', self.space())}by{self.pick(' k', '(k)')} {{{body}\n}}"

    def test(self, number: int) -> str:
        """Return a test of the pattern made last."""
        lines = []
        for key in range(self.random.randint(1, 2)):
            label = self.pick(f"c{key}", f'"key {key}"', f"{key}")
            times = sorted(self.random.randint(0, 5_000) for _ in range(self.random.randint(1, 4)))
            events = [self.scripted(time) for time in times]
            lines.append(f"{label}:{self.space()}{self.space().join(events)}")
        lines.append(
            self.pick(
                "expect none",
                "expect matches 2",
                "expect match at 5 m",
                "todo expect none",
                'todo "later"\n expect none',
                *(["expect timeout", "expect timeout at 5m {q:1.00}", "expect timeout{}"] if self.times_out else []),
            )
        )
        arguments = self.pick("", "", " with (low=3, window = 1 h)")
        return f'test "t{number}" of p{number}{arguments} {{ {self.space().join(lines)}\n}}'

    def scripted(self, seconds: int) -> str:
        fields = [self.pick("a=1", "a=2.50", "a= -3"), self.pick('c="x"', "c=null"), self.pick("f=true", "f=false")]
        fields = fields[: self.random.randint(0, 3)]
        repeat = self.pick("", "", " x3 every 1s")
        return f"{seconds}{self.pick('s', ' s')} {self.pick('t', 'u')} {self.pick(' ', ', ').join(fields)}{repeat}"

    def file(self) -> str:
        parts = ['list bad = ["KP", # no\n "IR"]', "define small( limit )=a < limit and\nf"]
        for number in range(self.random.randint(1, 2)):
            parts.append(self.pattern(number))
            if self.chance(0.6):
                parts.append(self.test(number))
        return FIELDS + self.pick("\n", "\n\n\n", "  # trailing\n").join(parts) + self.pick("", "\n# the end")


def random_file(seed: int) -> str:
    """Return the text of a valid file; the same for the same seed."""
    return _Maker(seed).file()
