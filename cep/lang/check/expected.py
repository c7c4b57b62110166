"""The expectations of a test, checked: keys and values that exist, and nothing that contradicts itself.

Tested by: tests/lang/test_check_tests.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from dataclasses import dataclass

from cep.lang.check.resolve import duplicate
from cep.lang.check.test_constants import slot_of, tolerance_of
from cep.lang.diagnostics import Collector, Label, Span, did_you_mean
from cep.lang.ir import PatternIR
from cep.lang.ir_tests import Expected, ExpectedCount, ExpectedValue
from cep.lang.syntax import ExpectSyntax, Literal, NameRef, PatternTestSyntax


@dataclass(frozen=True, slots=True)
class Expectations:
    """The matches, counts and absences that a test expects (see PatternTest)."""

    expected: tuple[Expected, ...]
    counts: tuple[ExpectedCount, ...]
    nothing: tuple[str | None, ...]


class ExpectationChecker:
    """Checks the `expect` lines of one test against its pattern and the labels of its keys."""

    def __init__(
        self, test: PatternTestSyntax, pattern: PatternIR, labels: tuple[str, ...], collector: Collector
    ) -> None:
        self.test, self.pattern, self.labels, self.collector = test, pattern, labels, collector

    def check(self) -> Expectations:
        """Check all expectations. Report those with mistakes."""
        expects = self.test.expects
        if not expects and not self.test.broken:
            message = f"the test `{self.test.name}` expects nothing, so it cannot fail"
            help_line = "write `expect none` if nothing may come out"
            self.collector.add("CEP602", message, self.test.span, help_line)
        self._contradictions()
        events = [expect for expect in expects if expect.kind in ("match", "timeout")]
        counted = [expect for expect in expects if expect.kind == "matches"]
        return Expectations(
            tuple(self._expected(expect) for expect in events),
            tuple(ExpectedCount(self._key(expect), expect.count, expect.span) for expect in counted),
            tuple(self._key(expect) for expect in expects if expect.kind == "none"),
        )

    def _expected(self, expect: ExpectSyntax) -> Expected:
        if expect.kind == "timeout" and self.pattern.timeout_measures is None:
            message = f"`{self.pattern.name}` emits nothing when its time runs out"
            help_line = "add `on timeout emit …` to the pattern"
            self.collector.add("CEP607", message, expect.span, help_line)
        at_ms = None if expect.at is None else expect.at.ms
        return Expected(expect.kind == "timeout", self._key(expect), at_ms, self._values(expect), expect.span)

    def _key(self, expect: ExpectSyntax) -> str | None:
        if expect.key is None:
            return None
        label = _text(expect.key)
        if label not in self.labels:
            message = f"the test has no key `{label}`"
            self.collector.add("CEP606", message, expect.key.span, did_you_mean(label, self.labels, "its keys"))
        return label

    def _values(self, expect: ExpectSyntax) -> tuple[ExpectedValue, ...]:
        """Check the values that a test expects of a match or a time-out."""
        is_timeout = expect.kind == "timeout"
        measures = (self.pattern.timeout_measures or ()) if is_timeout else self.pattern.measures
        if is_timeout and self.pattern.timeout_measures is None:
            return ()  # already reported: the pattern has no time-outs
        types = {m.name: m.value.type for m in measures}
        values: list[ExpectedValue] = []
        span_by_name: dict[str, Span] = {}
        for measure in expect.measures:
            if measure.name not in types:
                message = f"`{self.pattern.name}` emits no `{measure.name}`{' on timeout' if is_timeout else ''}"
                help_line = did_you_mean(measure.name, types, "it emits")
                self.collector.add("CEP606", message, measure.span, help_line)
                continue
            if measure.name in span_by_name:
                duplicate("value", measure.name, measure.span, span_by_name[measure.name], self.collector)
            span_by_name.setdefault(measure.name, measure.span)
            # Whether a value can be null is a matter of the events; a test may expect it of every one.
            const = slot_of(measure.value, types[measure.name].as_nullable(), f"`{measure.name}`", self.collector)
            if const is not None:
                tolerance = tolerance_of(measure.value, types[measure.name])
                values.append(ExpectedValue(measure.name, const.value, types[measure.name], tolerance))
        return tuple(values)

    def _contradictions(self) -> None:
        """Report the first two expectations that exclude each other: nothing and something, or two numbers."""
        for later, expect in enumerate(self.test.expects):
            for earlier in self.test.expects[:later]:
                kinds = {expect.kind, earlier.kind}
                overlap = expect.key is None or earlier.key is None or _text(expect.key) == _text(earlier.key)
                same = (expect.key is None) == (earlier.key is None) and overlap
                excluded = "none" in kinds and overlap and not (len(kinds) == 1 and not same)
                if excluded or (kinds == {"matches"} and same):
                    message = "these two cannot both be true" if len(kinds) > 1 else "this is expected twice"
                    labels = (Label(earlier.span, "the other one"),)
                    self.collector.add("CEP602", message, expect.span, "leave one of the two out", labels)
                    return


def _text(label: Literal | NameRef) -> str:
    return label.name if isinstance(label, NameRef) else str(label.value)
