"""A suite's outcomes → JUnit XML, which CI systems show.

One `testsuite` per pattern; a failure's text is the output of `cep test`. Known gaps count as skipped.
Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from cep.lang.diagnostics import Span
from cep.lang.explain.render import lines_of
from cep.testing.harness import Outcome, Verdict
from cep.testing.report import difference_lines, story_lines
from cep.testing.suite import Suite


def junit_xml(suite: Suite) -> bytes:
    """Write the outcomes of tests as a JUnit XML document, UTF-8."""
    root = Element("testsuites", {"name": "cep test", **_counts(suite.tested, len(suite.refused))})
    names = dict.fromkeys([*(t.test.pattern.name for t in suite.tested), *(r.pattern for r in suite.refused)])
    for name in names:
        tested = [t for t in suite.tested if t.test.pattern.name == name]
        refused = [r for r in suite.refused if r.pattern == name]
        group = SubElement(root, "testsuite", {"name": _clean(name), **_counts(tested, len(refused))})
        pattern = suite.checked.resolved.patterns.get(name)
        if pattern is not None and pattern.doc:
            about = {"name": "description", "value": _clean(" ".join(pattern.doc.split()))}
            SubElement(SubElement(group, "properties"), "property", about)
        for one in tested:
            _outcome(_case(group, suite, one.test.name, name, one.test.span, one.seconds), one)
        for test in refused:
            case = _case(group, suite, test.name, name, test.span, 0.0)
            SubElement(case, "error", message="the test or its pattern has mistakes; see `cep check`")
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(group: Element, suite: Suite, name: str, pattern: str, span: Span, seconds: float) -> Element:
    line, _ = lines_of(suite.checked.sources.get(span.file, "")).position(span.start)
    names = {"name": _clean(name), "classname": _clean(pattern), "file": _clean(span.file)}
    return SubElement(group, "testcase", {**names, "line": str(line), "time": f"{seconds:.3f}"})


def _outcome(case: Element, tested: Verdict) -> None:
    if tested.outcome is Outcome.BROKEN:
        SubElement(case, "error", message=_clean(tested.error))
    elif tested.outcome is Outcome.GAP:
        SubElement(case, "skipped", message=_clean(tested.test.todo or "a known gap"))
    elif tested.outcome is Outcome.FAILED:
        lines = difference_lines(tested)
        message = "; ".join(f"{title} {line}".strip() for title, line in lines)
        failure = SubElement(case, "failure", message=_clean(message))
        failure.text = _clean("\n".join(f"{title:<10}{line}" for title, line in (*lines, *story_lines(tested))))


def _counts(tested: Iterable[Verdict], refused_count: int) -> dict[str, str]:
    """Return the attributes of a test suite that count outcomes."""
    outcomes = list(tested)

    def count(outcome: Outcome) -> int:
        return sum(t.outcome is outcome for t in outcomes)

    return {
        "tests": str(len(outcomes) + refused_count),
        "failures": str(count(Outcome.FAILED)),
        "errors": str(count(Outcome.BROKEN) + refused_count),
        "skipped": str(count(Outcome.GAP)),
        "time": f"{sum(t.seconds for t in outcomes):.3f}",
    }


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)
