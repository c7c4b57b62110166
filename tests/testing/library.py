"""The library of patterns: the comments above each pattern, and its tests with one parameter a step away.

    python -m tests.testing.library

writes the table of `patterns/README.md`. Above each pattern, `##` comments describe the fraud that it detects. The
comments `# Source:`, `# Defaults:` and `# Measured:` give its origin, the reasons for its default values, and the data
on which it was run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind
from cep.engine.advance import advance
from cep.lang.check.bind import bind
from cep.lang.ir import History, ParamDecl, PatternIR, PatternTest
from cep.lang.load import Checked, bundle_source, load_files
from cep.lang.walk import nodes
from cep.model.rule import UpsertRecord
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.report.plan import plan, size_text
from cep.testing.events import batch_of
from cep.testing.harness import START_MS, observed_matches

ROOT = Path(__file__).parents[2]
PATTERNS = ROOT / "patterns"
README = PATTERNS / "README.md"
DOMAINS = {
    "account_flows": "accounts",
    "accounts": "accounts",
    "cards": "cards",
    "cards_online": "cards",
    "crypto": "crypto",
    "devices": "devices and logins",
    "insiders": "insiders",
    "laundering": "laundering",
    "laundering_flows": "laundering",
    "lending": "lending",
    "login_attacks": "devices and logins",
    "logins": "devices and logins",
    "merchants": "merchants",
    "payments": "payments",
    "takeover": "take-over",
    "takeover_chains": "take-over",
    "transfers": "payments",
}
_NOTE = re.compile(r"# (Source|Defaults|Measured): (.*)")
_HEAD = (
    "| pattern | domain | detects | source | costs | measured on |",
    "| --- | --- | --- | --- | --- | --- |",
)
_SMALL_STEP = 0.01  # of a float, as a share of it; other types use their smallest step
_NUMBERS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DURATION)


@dataclass(frozen=True, slots=True)
class Entry:
    """A pattern of the library with the comments above it."""

    name: str
    domain: str
    detects: str
    notes: dict[str, str]

    def row(self, costs: str) -> str:
        first = re.split(r"(?<=[.:]) ", self.detects)[0].rstrip(".:")
        source, measured = (self.notes[name].rstrip(".") for name in ("Source", "Measured"))
        return f"| {' | '.join((f'`{self.name}`', self.domain, first, source, costs, measured))} |"


def library() -> Checked:
    return load_files(sorted(PATTERNS.glob("*.cep")))


def entries() -> Iterator[Entry]:
    """Yield the patterns in the order of domains and files."""
    for path in sorted(PATTERNS.glob("*.cep"), key=lambda path: (DOMAINS.get(path.stem, ""), path.stem)):
        above: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("pattern "):
                notes = {match[1]: match[2] for text in above if (match := _NOTE.fullmatch(text))}
                detects = " ".join(text[3:] for text in above if text.startswith("## "))
                name = re.split(r"[ (]", line)[1]
                yield Entry(name, DOMAINS[path.stem], detects, notes)
            above = [*above, line] if line.startswith("#") else []


def table() -> str:
    """Return the table of the library, with the costs of each pattern from `cep plan`."""
    checked = library()
    planned = plan(checked.patterns.values(), checked.schema, {}).patterns
    costs = {p.pattern.name: f"{size_text(p.state_bytes)}, {p.instructions_event} instructions" for p in planned}
    return "\n".join((*_HEAD, *(entry.row(costs[entry.name]) for entry in entries()))) + "\n"


def written_table(text: str) -> str:
    return text[text.index(_HEAD[0]) :].split("\n\n", 1)[0].rstrip("\n") + "\n"


def rules_for(event_types: set[str]) -> list[UpsertRecord]:
    """Return a rule for each pattern of the library that reads some of these event types and no other."""
    checked = library()
    return [
        rule
        for path in sorted(PATTERNS.glob("*.cep"))
        for rule in rules_in(path, checked)
        if set(checked.patterns[rule.pattern].event_types) <= event_types
    ]


def rules_in(path: Path, checked: Checked) -> list[UpsertRecord]:
    text = path.read_text(encoding="utf-8")
    return [
        UpsertRecord(
            id=name, version=1, pattern=name, status="live", severity="low", owner="test", message="m",
            source=bundle_source(path),
        )
        for name in checked.patterns
        if f"\npattern {name}(" in text
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- a step away


def flips(checked: Checked, test: PatternTest, *, durations: bool) -> bool:
    """Say whether a step of one duration, or of one other parameter, changes the outcome."""
    pattern, before = checked.patterns[test.pattern.name], _matches(checked, test)
    return any(_matches(checked, replace(test, pattern=other)) != before for other in _beside(pattern, test, durations))


def looks_back(pattern: PatternIR) -> bool:
    """Say whether the pattern has a window of the calendar."""
    histories = (node for node in nodes(pattern) if isinstance(node, History))
    return any(node.window is not None and node.window.calendar is not None for node in histories)


def flips_in_time(checked: Checked, test: PatternTest) -> bool:
    """Say whether a shift of all events by a millisecond changes the outcome: then one event crosses midnight."""
    before = _matches(checked, test)
    return any(_matches(checked, test, START_MS + step) != before for step in (-1, 1))


def _matches(checked: Checked, test: PatternTest, start_ms: int = START_MS) -> int:
    program = compile_rules(checked.schema, test.pattern.key, (DeployedRule("test", 1, 1, "test", test.pattern),))
    batch = batch_of(checked.schema, test.events, test.pattern.key, start_ms)
    return len(observed_matches(program, advance(program, None, batch, TIME_MS_MAX).matches))


def _beside(pattern: PatternIR, test: PatternTest, durations: bool) -> Iterator[PatternIR]:
    """Yield the pattern with each parameter of the test a step lower and a step higher, even out of its bounds."""
    arguments = dict(test.arguments)
    for param in pattern.params:
        if (param.type.kind is Kind.DURATION) != durations or param.type.kind not in _NUMBERS:
            continue
        others = {name: value for name, value in arguments.items() if name != param.name}
        default = _slot(param, arguments.get(param.name))
        step = abs(default) * _SMALL_STEP if param.type.kind is Kind.FLOAT else 1
        for value in (default - step, default + step):
            moved = ParamDecl(param.name, param.type, value)
            bound, _ = bind(replace(pattern, params=tuple(moved if p is param else p for p in pattern.params)), others)
            if bound is not None:
                yield bound


def _slot(param: ParamDecl, value: object) -> float:
    """Return the value of a parameter as the program stores it: ms, or the smallest unit of a decimal."""
    if value is None:
        assert isinstance(param.default, int | float)
        return param.default
    if param.type.kind is Kind.DURATION:
        return int(str(value).removesuffix(" ms"))
    if param.type.kind is Kind.DECIMAL:
        return int(Decimal(str(value)).scaleb(param.type.scale))
    assert isinstance(value, int | float)
    return value


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(text.replace(written_table(text), table()), encoding="utf-8")


if __name__ == "__main__":
    main()
