"""`cep test`: the tests of pattern files → their outcomes, coverage, and JUnit XML.

Tested by: tests/cli/test_authoring.py
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cep.base.errors import SinkError, UsageError
from cep.base.files import replace_file
from cep.base.limits import WATCH_POLLS_MAX
from cep.base.terminal import Terminal, new_table
from cep.cli.help_pages import read_on
from cep.cli.paths import pattern_files, printed
from cep.cli.verbs import Parser
from cep.engine.advance import MATCHERS
from cep.lang.explain.render import render_text, summary
from cep.runners.ahead import compiled_ahead
from cep.testing.harness import Outcome, Suite, Verdict, difference_lines, junit_xml, run_suite, story_lines
from cep.testing.journal import Coverage, Share

HELP = """\
Run the tests in pattern files, on the production engine. A failed test shows the expected matches, the actual matches,
and how far the runs of each key got.

examples:
  cep test
  cep test patterns/cards.cep --coverage
  cep test --only card_testing
  cep test --only "three declines"
  cep test --junit build/patterns.xml
  cep test --watch
"""
_STYLES = {Outcome.PASSED: "green", Outcome.FAILED: "bold red", Outcome.BROKEN: "bold magenta", Outcome.GAP: "yellow"}
_POLL_SECONDS = 0.5
_MISSING_SHOWN_MAX = 20


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare(
        "paths PATH",
        "a pattern file, or a folder of them (default: patterns)",
        type=str,
        nargs="*",
        default=["patterns"],
    )
    parser.declare("--only NAME", "run only the tests with this in their names, or of the pattern of this name")
    parser.declare("--coverage", "show which states, transitions and outcomes the tests went through")
    parser.declare("--junit FILE", "write the outcomes as JUnit XML")
    parser.declare("--watch", "run again when a file changes, until interrupted")


def run(options: argparse.Namespace, color: bool) -> int:
    """Run the tests once, or at every change. Return 0, or 1 if a test failed or there was none."""
    console = Terminal(highlight=False, no_color=not color, force_terminal=color or None, soft_wrap=True)
    once = partial(_once, options, console)
    return watch(options.paths, once, console) if options.watch else once()


def _once(options: argparse.Namespace, console: Console) -> int:
    started = time.perf_counter()
    with compiled_ahead(MATCHERS):
        suite = run_suite(pattern_files(options.paths), options.only)
    if suite.checked.diagnostics:
        printed(
            render_text(suite.checked.diagnostics, suite.checked.sources, color=not console.no_color), is_styled=True
        )
    for name in dict.fromkeys(t.test.span.file for t in suite.tested):
        _print_file(name, suite, console)
    for refused in suite.refused:
        _print_outcome(Outcome.BROKEN, f"{refused.pattern}: {refused.name}", console)
    if options.coverage:
        _print_coverage(suite.coverage(), console)
    if options.junit is not None:
        _write(options.junit, junit_xml(suite))
    _print_summary(suite, time.perf_counter() - started, console)
    return 0 if suite.ok else 1


def watch(
    paths: list[str], once: Callable[[], int], console: Console, *,
    sleep: Callable[[float], None] = time.sleep, polls_max: int = WATCH_POLLS_MAX,
) -> int:  # fmt: skip
    """Run `once` now and whenever a file below the paths has changed; returns the last exit code."""
    before = _stamps(paths)
    code = once()
    for _ in range(polls_max):
        sleep(_POLL_SECONDS)
        now = _stamps(paths)
        if now != before:
            before = now
            console.rule()
            try:
                code = once()
            except UsageError as error:
                console.print(str(error), markup=False)
    return code


def _stamps(paths: list[str]) -> dict[str, tuple[int, int]]:
    """Time of change and size of each pattern file. Files may vanish while we look, as when an editor saves."""
    stamps: dict[str, tuple[int, int]] = {}
    with suppress(OSError, UsageError):
        for path in pattern_files(paths):
            stat = path.stat()
            stamps[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return stamps


def _print_file(name: str, suite: Suite, console: Console) -> None:
    console.print(Text(name, style="bold"))
    file_tests = [t for t in suite.tested if t.test.span.file == name]
    for pattern in dict.fromkeys(t.test.pattern.name for t in file_tests):
        tests = [t for t in file_tests if t.test.pattern.name == pattern]
        about = " ".join(tests[0].test.pattern.doc.split())
        console.print(Text.assemble(f"  {pattern}", (f"  {about}" if about else "", "dim")))
        for tested in tests:
            _print_tested(tested, console)
    console.print()


def _print_tested(tested: Verdict, console: Console) -> None:
    name = tested.test.name
    if tested.outcome is Outcome.GAP:  # the test has `todo`: it may fail
        reason = f" ({tested.test.todo})" if tested.test.todo else ""
        passes = "" if tested.differences else "; it passes now, so `todo` can go"
        name = f"{name}{reason}{passes}"
    _print_outcome(tested.outcome, name, console, indent=4)
    if tested.outcome is Outcome.FAILED:
        for title, line in (*difference_lines(tested), *story_lines(tested)):
            console.print(Text.assemble(" " * 10, (f"{title:<10}", "bold" if title else ""), line))
    if tested.error and tested.outcome in (Outcome.BROKEN, Outcome.FAILED):
        console.print(Text(" " * 10 + tested.error))


def _print_outcome(outcome: Outcome, name: str, console: Console, indent: int = 2) -> None:
    console.print(Text.assemble(" " * indent, (f"{outcome.value.upper():<5}", _STYLES[outcome]), f" {name}"))


def _print_coverage(coverage: list[Coverage], console: Console) -> None:
    table = new_table(("coverage",), ("NFA states", "transitions", "outcomes"))
    for one in coverage:
        table.add_row(one.pattern, *(_share(s) for s in (one.states, one.transitions, one.outcomes)))
    console.print(table)
    for one in coverage:
        shares = (("state", one.states), ("transition", one.transitions), ("outcome", one.outcomes))
        missing = [f"{kind} {name}" for kind, share in shares for name in share.missing()]
        for line in missing[:_MISSING_SHOWN_MAX]:
            console.print(Text(f"  {one.pattern} never: {line}"))
        if len(missing) > _MISSING_SHOWN_MAX:
            console.print(Text(f"  {one.pattern} and {len(missing) - _MISSING_SHOWN_MAX} more"))
    console.print()


def _share(share: Share) -> str:
    reached, every = share.counts
    return f"{reached}/{every}" if every else "no test"


def _print_summary(suite: Suite, seconds: float, console: Console) -> None:
    if not suite.total:
        console.print("no tests here", style="bold red")
    errors_count = suite.count(Outcome.BROKEN)
    counts = {
        "passed": suite.count(Outcome.PASSED), "failed": suite.count(Outcome.FAILED),
        "error" if errors_count == 1 else "errors": errors_count, "todo": suite.count(Outcome.GAP),
    }  # fmt: skip
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in ("passed", "failed"))
    plural = "" if suite.total == 1 else "s"
    console.print(f"{suite.total} test{plural}: {shown}   ({seconds:.1f} s)")
    if not suite.checked.ok:
        console.print(summary(suite.checked.diagnostics, suite.checked.dropped), markup=False)
    if line := read_on(suite.checked.diagnostics):
        console.print(line, markup=False)
    sys.stdout.flush()


def _write(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        raise SinkError(f"cannot write {path}: {error}; give --junit another file") from error
