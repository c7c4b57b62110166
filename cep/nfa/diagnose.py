"""Checked patterns → the patterns that also compile; the others become diagnostics. The same for lists.

The check of the language does not know the automaton and its limits. A parameter without a default has its least value
here: a pattern that does not compile with that value compiles with no other.

Tested by: tests/nfa/test_compile.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from dataclasses import replace

from cep.base.limits import DIAGNOSTICS_MAX, REGISTERS_MAX, WAITS_PER_STATE_MAX
from cep.base.schema import Kind, Schema
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic, Span
from cep.lang.ir import Aggregate, ParamDecl, PatternIR, VarField
from cep.lang.load import Checked
from cep.lang.syntax import VariableSyntax
from cep.lang.walk import nodes
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.given_lists import given_lists
from cep.nfa.positions import Automaton, build
from cep.nfa.refusal import CompileError

_HELP = {
    "CEP424": "put what follows into a pattern of its own, or leave out the group's window",
    "CEP425": "split the pattern into several, or lower the repetition of its groups",
}
# Registers that one aggregate may need (stddev: offsets, their squares, base, present), and a field of an event.
_AGGREGATE_REGISTERS, _FIELD_REGISTERS = 4, 2


def compilable(checked: Checked) -> Checked:
    """Compile each pattern of a file set, and replace the ones that fail by diagnostics.

    Cost: the automaton of each pattern; the tables only where a limit could be near.
    """
    refused = {name: _refusal(pattern, checked.schema) for name, pattern in checked.patterns.items()}
    diagnostics = [_diagnostic(name, error, checked) for name, error in refused.items() if error is not None]
    diagnostics += given_lists(checked).diagnostics
    if not diagnostics:
        return checked
    diagnostics_left = max(0, DIAGNOSTICS_MAX - len(checked.diagnostics))
    return replace(
        checked,
        patterns={name: pattern for name, pattern in checked.patterns.items() if refused[name] is None},
        diagnostics=(*checked.diagnostics, *diagnostics[:diagnostics_left]),
        dropped=checked.dropped + len(diagnostics[diagnostics_left:]),
    )


def _refusal(pattern: PatternIR, schema: Schema) -> CompileError | None:
    stand_ins = {p.name: _least(p) for p in pattern.params if p.default is None}
    bound, _ = bind(pattern, stand_ins)
    if bound is None:
        return None  # a structure that needs other arguments; the rule with these arguments is checked
    try:
        if _is_near_a_limit(bound, build(bound.structure)):
            compile_rules(schema, bound.key, (DeployedRule("check", 1, 0, "", bound),))
    except CompileError as error:
        return error
    return None


def _is_near_a_limit(bound: PatternIR, automaton: Automaton) -> bool:
    """Return True if the tables could be too large. An upper bound, so that few patterns need to be compiled."""
    parts = list(nodes(bound))
    registers = sum(p.loops for p in automaton.positions) + automaton.marks
    registers += _AGGREGATE_REGISTERS * sum(isinstance(p, Aggregate) for p in parts)
    registers += _FIELD_REGISTERS * sum(isinstance(p, VarField) for p in parts)
    flags = (len(p.waits) + sum(g.moment == "frees" for w in p.waits for g in w.guards) for p in automaton.positions)
    return registers > REGISTERS_MAX or any(count > WAITS_PER_STATE_MAX for count in flags)


def _least(param: ParamDecl) -> object:
    """Return the value of a parameter that makes the smallest automaton, to check a pattern without a rule."""
    if param.type.kind is Kind.ENUM:
        return param.type.symbols[0]
    if param.type.kind is Kind.BOOL:
        return False
    if param.type.kind is Kind.LIST:
        return []
    if param.type.is_text:
        return ""
    if param.type.kind is Kind.DECIMAL:
        return 0 if param.minimum is None else f"{int(param.minimum) / 10**param.type.scale:.{param.type.scale}f}"
    least = 1 if param.minimum is None else param.minimum
    return f"{least} ms" if param.type.kind is Kind.DURATION else least


def _diagnostic(name: str, error: CompileError, checked: Checked) -> Diagnostic:
    return Diagnostic(error.code, str(error), _place(name, error.variable, checked), (), _HELP[error.code])


def _place(name: str, variable: str | None, checked: Checked) -> Span:
    """Return the variable in the structure, or the name of the pattern."""
    pattern = checked.resolved.patterns[name]
    spans = (n.span for n in nodes(pattern.structure) if isinstance(n, VariableSyntax) and n.name == variable)
    return next(spans, pattern.span)
