"""Parsed files → every occurrence of a name, and its meaning: for the editor's definition, rename and hover.

Works on files with mistakes too: a name without a meaning is left out.
Tested by: tests/lang/test_editor.py
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cep.lang import syntax
from cep.lang.check.resolve import Resolved
from cep.lang.diagnostics import Span
from cep.lang.functions import FUNCTIONS
from cep.lang.walk import nodes


@dataclass(frozen=True, slots=True)
class Named:
    """The meaning of a name. `owner` is the pattern of a parameter, variable or value, or the argument's definition."""

    kind: str  # event, field, symbol, list, definition, argument, pattern, parameter, variable, value, function
    name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a text. `declares`: this is where it is introduced."""

    span: Span
    named: Named
    declares: bool = False


def places(files: Iterable[syntax.FileSyntax], resolved: Resolved) -> list[Place]:
    """Return all places of all files, in the order of declarations."""
    finder = _Finder(resolved)
    return [place for file in files for declaration in file.declarations for place in finder.declaration(declaration)]


def place_at(places: Iterable[Place], file: str, offset: int) -> Place | None:
    """Return the place that contains the offset or ends there."""
    for place in places:
        if place.span.file == file and place.span.start <= offset <= place.span.end:
            return place
    return None


class _Finder:
    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved
        events = list(resolved.events.values())
        self.fields = {f.name for e in events for f in e.fields}
        self.symbols = {s for e in events for f in e.fields for s in f.type.symbols}

    def declaration(self, node: object) -> Iterator[Place]:
        if isinstance(node, syntax.EventSyntax):
            yield Place(node.span, Named("event", node.name), declares=True)
            for field in node.fields:
                yield Place(field.span, Named("field", field.name), declares=True)
                for symbol in field.type.symbols:
                    yield Place(symbol.span, Named("symbol", symbol.name), declares=True)
            if node.order is not None:  # `order by seq_no`
                yield Place(node.order.span, Named("field", node.order.name))
        elif isinstance(node, syntax.ListSyntax):
            yield Place(node.span, Named("list", node.name), declares=True)
            yield from self._names(node.items, {})
        elif isinstance(node, syntax.DefineSyntax):
            yield Place(node.span, Named("definition", node.name), declares=True)
            local = {p.name: Named("argument", p.name, node.name) for p in node.params}
            for param in node.params:
                yield Place(param.span, local[param.name], declares=True)
            yield from self._names(node.body, local)
        elif isinstance(node, syntax.PatternSyntax):
            yield from self._pattern(node)
        elif isinstance(node, syntax.PatternTestSyntax):
            yield from self._test(node)

    def _pattern(self, node: syntax.PatternSyntax) -> Iterator[Place]:
        yield Place(node.span, Named("pattern", node.name), declares=True)
        local = {p.name: Named("parameter", p.name, node.name) for p in node.params}  # names of this pattern alone
        for param in node.params:
            yield Place(param.span, local[param.name], declares=True)
            if param.type.of is not None and isinstance(param.default, syntax.NameRef):
                yield Place(param.default.span, Named("list", param.default.name))
        for key in node.key:
            yield Place(key.span, Named("field", key.name))
        variables = [v for v in nodes(node.structure) if isinstance(v, syntax.VariableSyntax)]  # in `seq`
        local |= {v.name: Named("variable", v.name, node.name) for v in variables}
        for variable in variables:
            yield Place(variable.span, local[variable.name], declares=True)
        yield from self._names(node.structure, local)
        for where in node.wheres:
            yield Place(where.span, Named("variable", where.variable, node.name))
            yield Place(where.event_type.span, Named("event", where.event_type.name))
            yield from self._names(where.condition, local)
        if node.skip is not None and node.skip.variable is not None:
            yield Place(node.skip.variable.span, Named("variable", node.skip.variable.name, node.name))
        if node.produces is not None:
            yield Place(node.produces.span, Named("event", node.produces.name))
        for measure in (*node.measures, *(node.timeout_measures or ())):  # of `emit` and of `on timeout emit`
            yield Place(measure.span, Named("value", measure.name, node.name), declares=True)
            yield from self._names(measure.value, local)

    def _test(self, node: syntax.PatternTestSyntax) -> Iterator[Place]:
        pattern = node.pattern.name
        yield Place(node.pattern.span, Named("pattern", pattern))
        yield from self._assigned(node.arguments, "parameter", pattern)
        for key in node.keys:
            yield from self._assigned(key.fields, "field", "")
            for event in key.events:
                yield Place(event.event_type.span, Named("event", event.event_type.name))
                yield from self._assigned(event.fields, "field", "")
        for expect in node.expects:
            yield from self._assigned(expect.measures, "value", pattern)

    def _assigned(self, assignments: Iterable[syntax.AssignSyntax], kind: str, owner: str) -> Iterator[Place]:
        for assign in assignments:
            yield Place(assign.span, Named(kind, assign.name, owner))
            yield from self._names(assign.value, {})

    def _names(self, tree: object, local: Mapping[str, Named]) -> Iterator[Place]:
        """Yield the names in expressions, but not the unit in `over day`. `local` has the names of the declaration."""
        units = {id(n.bound) for n in nodes(tree) if isinstance(n, syntax.HistoryWindowSyntax)}  # such as `day`
        lists = {id(n.items) for n in nodes(tree) if isinstance(n, syntax.InSyntax)}  # names after `in`
        for node in nodes(tree):
            if isinstance(node, syntax.Member):
                yield Place(node.field_span, Named("field", node.field))
            elif isinstance(node, syntax.CallSyntax | syntax.HistorySyntax):
                if node.name in self.resolved.defines:
                    yield Place(node.name_span, Named("definition", node.name))
                elif node.name in FUNCTIONS:
                    yield Place(node.name_span, Named("function", node.name))
            elif isinstance(node, syntax.NameRef):
                if id(node) in units and node.name not in local:  # a local name is a parameter
                    continue
                named = Named("list", node.name) if id(node) in lists else self._meaning_of(node.name, local)
                if named is not None:
                    yield Place(node.span, named)

    def _meaning_of(self, name: str, local: Mapping[str, Named]) -> Named | None:
        """Return the meaning of a bare name: a local name first, then a field, definition, symbol, event or list."""
        if name in local:
            return local[name]
        for kind, names in (
            ("field", self.fields),
            ("definition", self.resolved.defines),
            ("symbol", self.symbols),
            ("event", self.resolved.events),
            ("list", self.resolved.lists),
        ):
            if name in names:
                return Named(kind, name)
        return None
