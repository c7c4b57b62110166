"""A checked file set → findings: the warnings of the check and of the lints, without silenced ones.

`# allow(CEP701): reason` silences one code on its line, or, on a line of its own, on the next line with more than a
comment. A silence without a reason, with an unknown code, or without a finding, is itself a finding.
Tested by: tests/lang/test_golden.py, tests/lang/golden/lints/
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cep.lang.diagnostics import Collector, Diagnostic, Severity, Span, did_you_mean, nearest_fix, place_of
from cep.lang.explain.catalogue import CATALOGUE
from cep.lang.explain.render import lines_of
from cep.lang.lint.lints import LINTS
from cep.lang.load import Checked
from cep.lang.parse.lexer import lex

ALLOW_CODE = "CEP710"
_ALLOW = re.compile(r"#\s*allow\(\s*(\w*)\s*\)\s*(?::\s*(.*))?$")


@dataclass(slots=True)
class _Allow:
    """A silence: its code, the line that it speaks of, its place."""

    code: str
    line: int
    reason: str
    span: Span
    code_span: Span
    used: bool = False


def lint(checked: Checked, files: Iterable[str] | None = None, more: Iterable[Diagnostic] = ()) -> list[Diagnostic]:
    """Return the warnings in these files (all by default), sorted by place. `more` has findings of other checks.

    Errors are not repeated here; patterns with errors are not looked at. A warning with an `allow` comment is left out.
    """
    names = set(checked.sources if files is None else files)
    findings = [d for d in checked.diagnostics if not d.is_error]
    for find in LINTS:
        findings.extend(find(checked))
    findings.extend(more)
    reported: list[Diagnostic] = []
    allows = {name: list(_allows(name, checked.sources[name])) for name in names if name in checked.sources}
    for diagnostic in findings:
        span = diagnostic.span
        if span is None or span.file not in names:
            continue
        line = lines_of(checked.sources[span.file]).position(span.start)[0]
        silences = [a for a in allows[span.file] if a.code == diagnostic.code and a.line == line]  # `allow` comments
        for silence in silences:
            silence.used = True
        if not any(silence.reason for silence in silences):  # a comment without a reason silences nothing
            reported.append(diagnostic)
    for silences in allows.values():
        reported.extend(_about_allows(silences))  # mistakes in the comments themselves
    order = list(checked.sources)
    return sorted(reported, key=lambda d: place_of(d, order))


def _allows(name: str, text: str) -> Iterator[_Allow]:
    """Yield the `# allow(CEP…): reason` comments of a text, each with the line that it applies to."""
    if "allow(" not in text:  # the common case, and reading a text takes as long as all lints
        return
    lexed = lex(text, name, Collector())
    lines = lines_of(text)
    token_lines = sorted({token.line for token in lexed.tokens})
    with_tokens = set(token_lines)  # to look a line up
    for comment in lexed.comments:
        written = _ALLOW.match(comment.text.rstrip())  # [1] is the code, [2] the reason
        if written is None:  # another comment
            continue
        line = lines.position(comment.span.start)[0]
        if line not in with_tokens:  # the comment has a line of its own, and applies to the next line with a token
            line = token_lines[min(bisect_right(token_lines, line), len(token_lines) - 1)]
        start = comment.span.start + written.start(1)
        code_span = Span(name, start, start + len(written[1]))
        yield _Allow(written[1], line, (written[2] or "").strip(), comment.span, code_span)


def _about_allows(allows: list[_Allow]) -> Iterator[Diagnostic]:
    """Report `allow` comments with an unknown code, without a finding of this code, or without a reason."""
    for allow in allows:
        help_line = f"write `# allow({allow.code or 'CEP701'}): why it is fine here`"  # CEP701 is an example
        fix = None
        if allow.code not in CATALOGUE:
            message = f"`{allow.code}` is not a code"
            help_line = did_you_mean(allow.code, CATALOGUE, "codes")
            fix = nearest_fix(allow.code, CATALOGUE, allow.code_span)
        elif not allow.used:
            message, help_line = f"nothing on this line gives {allow.code}", "leave the comment out"
        elif not allow.reason:
            message = "this `allow` needs a reason"
        else:
            continue
        span = allow.code_span if fix is not None else allow.span
        yield Diagnostic(ALLOW_CODE, message, span, (), help_line, Severity.WARNING, fix)
