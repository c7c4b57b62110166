"""CEP702: a parameter, definition, list or variable that nothing refers to.

Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.check.order import spans_of
from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.ir import Aggregate, Param, PatternIR, VarField
from cep.lang.load import Checked
from cep.lang.syntax import DefineSyntax, ListSyntax, PatternSyntax
from cep.lang.walk import names_in, nodes

CODE = "CEP702"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Unused names of all files."""
    yield from _declarations(checked)
    for pattern in checked.patterns.values():
        syntax = checked.resolved.patterns[pattern.name]
        yield from _parameters(pattern, syntax)
        yield from _variables(pattern, syntax)


def _unused(kind: str, name: str, span: Span, help_line: str) -> Diagnostic:
    return Diagnostic(CODE, f"the {kind} `{name}` is not used", span, (), help_line, Severity.WARNING)


def _declarations(checked: Checked) -> Iterator[Diagnostic]:
    """Find lists and definitions that are not used. One that only another unused one uses is found in the next run."""
    used: set[str] = set()
    for file in checked.files:
        for declaration in file.declarations:
            if isinstance(declaration, DefineSyntax):
                used |= names_in(declaration.body) - {declaration.name}
            elif isinstance(declaration, PatternSyntax):
                used |= names_in(declaration)
    for defined in checked.resolved.defines.values():
        if defined.name not in used:
            yield _unused("definition", defined.name, defined.span, "leave it out")
    for declared in checked.resolved.lists.values():
        if isinstance(declared, ListSyntax) and declared.name not in used:
            yield _unused("list", declared.name, declared.span, "leave it out")


def _parameters(pattern: PatternIR, syntax: PatternSyntax) -> Iterator[Diagnostic]:
    used = {node.name for node in nodes(pattern) if isinstance(node, Param)}
    for param in syntax.params:
        if param.name not in used:
            yield _unused("parameter", param.name, param.span, "a rule that sets it would change nothing")


def _variables(pattern: PatternIR, syntax: PatternSyntax) -> Iterator[Diagnostic]:
    """Find variables without a condition that nothing refers to. Such a variable binds any event: usually a mistake."""
    used = {node.variable for node in nodes(pattern) if isinstance(node, VarField | Aggregate)}
    conditioned = {v.name for v in pattern.variables if v.where is not None}
    entries = {where.variable: where.span for where in syntax.wheres}
    spans = spans_of(syntax.structure)
    if len(pattern.variables) == 1:
        return
    for variable in pattern.variables:
        if variable.name not in used | conditioned | {pattern.skip.variable}:
            message = f"the variable `{variable.name}` has no condition and nothing refers to it: any event fits"
            span = entries.get(variable.name) or spans[variable.name]
            yield Diagnostic(CODE, message, span, (), "add a condition", Severity.WARNING)
