"""A checked pattern as readable text that shows every type and cast: the content of golden files."""

from cep.base.schema import Kind, Type
from cep.lang import ir


def dump_pattern(pattern: ir.PatternIR) -> str:
    """Return the whole pattern as text, one fact a line."""
    lines = [f"pattern {pattern.name} by {', '.join(pattern.key)}"]
    if pattern.doc:
        lines += [f"  doc      {line}" for line in pattern.doc.split("\n")]
    for param in pattern.params:
        bounds = "" if param.minimum is None else f" in {param.minimum} .. {param.maximum}"
        lines.append(f"  param    {param.name}: {param.type} = {param.default!r}{bounds}")
    lines.append(f"  events   {', '.join(pattern.event_types)}")
    lines += _node(pattern.structure, "  ")
    if pattern.within_ms is not None:
        lines.append(f"  within   {_amount(pattern.within_ms)} ms")
    if pattern.within_events is not None:
        lines.append(f"  within   {_amount(pattern.within_events)} events")
    for variable in pattern.variables:
        condition = "true" if variable.where is None else dump_expr(variable.where)
        lines.append(f"  where    {variable.name}: {variable.event_type}  {condition}")
    lines.append(f"  skip     {_skip(pattern.skip)}")
    lines += _measures("emit", pattern.measures)
    if pattern.produces is not None:
        lines.append(f"  produce  {pattern.produces}")
    if pattern.timeout_measures is not None:
        lines += _measures("timeout", pattern.timeout_measures) or ["  timeout"]
    return "\n".join(lines) + "\n"


def dump_expr(expr: ir.Expr) -> str:
    """Return an expression as `(op operands): type`; types are left out where they follow from the operands."""
    match expr:
        case ir.Const():
            return _const(expr)
        case ir.Param():
            return f"${expr.name}:{_type(expr.type)}"
        case ir.CurrentField():
            return f"{expr.field}:{_type(expr.type)}"
        case ir.VarField():
            return f"{expr.which}({expr.variable}).{expr.field}:{_type(expr.type)}"
        case ir.Aggregate():
            argument = "" if expr.argument is None else f", {dump_expr(expr.argument)}"
            return f"{expr.fn}({expr.variable}{argument}):{_type(expr.type)}"
        case ir.Unary():
            return f"({expr.op} {dump_expr(expr.argument)})"
        case ir.Binary():
            result = "" if expr.type.kind is Kind.BOOL else f":{_type(expr.type)}"
            return f"({dump_expr(expr.left)} {expr.op} {dump_expr(expr.right)}){result}"
        case ir.Cast():
            return f"<{_type(expr.type)}>{dump_expr(expr.argument)}"
        case ir.In():
            return f"({dump_expr(expr.argument)} in [{', '.join(dump_expr(item) for item in expr.items)}])"
        case ir.If():
            parts = [dump_expr(part) for part in (expr.condition, expr.then, expr.otherwise)]
            return f"(if {parts[0]} then {parts[1]} else {parts[2]}):{_type(expr.type)}"
        case ir.History():
            return _history(expr)
        case ir.Call():
            return f"{expr.fn}({', '.join(dump_expr(a) for a in expr.arguments)}):{_type(expr.type)}"


def _history(expr: ir.History) -> str:
    parts = [f"past {expr.fn}({expr.event_type or 'any'}"]
    if expr.argument is not None:
        parts.append(f" {dump_expr(expr.argument)}")
    window = expr.window
    if window is not None:
        span = f"{_amount(window.ms)} ms" if window.ms is not None else f"{window.calendar} in {window.zone}"
        parts.append(f" over {'previous ' if window.previous else ''}{span}")
    if expr.by:
        parts.append(f" by {', '.join(expr.by)}")
    if expr.where is not None:
        parts.append(f" where {dump_expr(expr.where)}")
    if expr.percent is not None:
        parts.append(f", {dump_expr(expr.percent)}")
    return "".join([*parts, f"):{_type(expr.type)}"])


def _type(value_type: Type) -> str:
    """Return the text of a type; an enum shows no symbols."""
    if value_type.kind is Kind.ENUM:
        return "enum?" if value_type.nullable else "enum"
    return str(value_type)


def _const(const: ir.Const) -> str:
    if isinstance(const.value, str):
        return f'"{const.value}"'
    if const.type.kind is Kind.ENUM and isinstance(const.value, int):
        return f"{const.type.symbols[const.value]}#{const.value}"
    return f"{const.value}:{_type(const.type)}"


def _measures(word: str, measures: tuple[ir.Measure, ...]) -> list[str]:
    return [f"  {word:<8} {m.name} = {dump_expr(m.value)}" for m in measures]


def _amount(value: int | ir.Param | None) -> str:
    if value is None:
        return ""
    return f"${value.name}" if isinstance(value, ir.Param) else str(value)


def _skip(skip: ir.Skip) -> str:
    parts = [skip.kind.value, skip.variable or "", "in order" if skip.in_order else ""]
    return " ".join(part for part in parts if part)


def _quantifier(quantifier: ir.Quantifier) -> str:
    if quantifier == ir.Quantifier():
        return ""
    parts = [f" {{{_amount(quantifier.min_count)},{_amount(quantifier.max_count)}}}"]
    if quantifier.inner is not ir.Inner.RELAXED:
        parts.append(quantifier.inner.value)
    if quantifier.greedy:
        parts.append("greedy")
    if quantifier.gap_ms is not None:
        parts.append(f"gap {_amount(quantifier.gap_ms)} ms")
    if quantifier.until is not None:
        parts.append(f"until {dump_expr(quantifier.until)}")
    return " ".join(parts)


def _node(node: ir.Node, indent: str) -> list[str]:
    match node:
        case ir.VarNode():
            return [f"{indent}{node.variable}{_quantifier(node.quantifier)}"]
        case ir.SequenceNode():
            within = "" if node.within_ms is None else f" within {_amount(node.within_ms)} ms"
            lines = [f"{indent}sequence{_quantifier(node.quantifier)}{within}"]
            for step in node.steps:
                lines += _step(step, indent + "  ")
            return lines
        case ir.AlternativeNode():
            return [f"{indent}one of", *(line for n in node.options for line in _node(n, indent + "  "))]
        case ir.AnyOrderNode():
            return [f"{indent}all of", *(line for n in node.items for line in _node(n, indent + "  "))]


def _step(step: ir.Step, indent: str) -> list[str]:
    gap = ""
    if step.gap_max_ms is not None:
        gap = f"[{_amount(step.gap_min_ms)} .. {_amount(step.gap_max_ms)} ms]"
    head = f"{step.link.value}{gap}{' !' if step.negated else ''}"
    lines = _node(step.node, indent)
    return [f"{indent}{head} {lines[0].strip()}", *lines[1:]]
