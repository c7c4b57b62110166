"""A checked file set and a place in a text → completions and hover texts; diagnostics → texts with their fixes applied.

Tested by: tests/lang/test_editor.py, tests/lang/test_golden.py
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from cep.base.schema import EventType, Field, Kind
from cep.lang.diagnostics import Collector, Diagnostic, Span
from cep.lang.edit.symbols import Named
from cep.lang.explain.catalogue import WORDS
from cep.lang.functions import FUNCTIONS
from cep.lang.ir import AggregateFn
from cep.lang.load import Checked
from cep.lang.parse.lexer import DECLARATIONS, Token, TokenKind, lex
from cep.lang.syntax import EventSyntax, PatternSyntax

_KINDS = ("id", "time", "string", "int", "decimal(2)", "float", "bool", "duration", "enum(…)")
_NOT_OFFERED = frozenset(("true", "false", "null"))
_SNIPPETS = {
    "event": "event ${1:name} {\n  ${2:id}  id\n  event_time  time\n  $0\n}",
    "import": 'import "$1"',
    "pattern": (
        "pattern ${1:name}\n  by ${2:card_id}\n{\n  seq    ${3:a -> b}  within ${4:10 min}\n"
        "  where  ${5:a}: ${6:transaction}  $0\n}"
    ),
    "test": 'test "${1:fires}" of ${2:pattern} {\n  ${3:c1}: 0 s ${4:transaction}\n  expect matches ${5:1}\n}',
}
# The words that may follow in each clause of a pattern. Expressions may stand in `where` and `emit`.
_IN_EXPRESSIONS = (
    "and", "or", "not", "in", "between", "is", "null", "like", "matches", "if", "then", "else", "over", "previous",
    "where", "by", "true", "false",
)  # fmt: skip
_BY_CLAUSE = {
    "seq": ("within", "greedy", "strict", "any", "until", "events"),
    "where": _IN_EXPRESSIONS,
    "emit": _IN_EXPRESSIONS,
    "skip": ("none", "to", "next", "past", "first", "last", "in", "order"),
    "produce": (),
    "over": ("all",),
    "on": ("timeout", "emit"),
}
_CLAUSES = ("seq", "where", "skip", "emit", "produce", "over all", "on timeout emit")
_IN_TEST = ("expect", "match", "matches", "timeout", "none", "on", "at", "todo", "every", "with", "of")


@dataclass(frozen=True, slots=True)
class Word:
    """Something to go on with. `kind` is one of Named's kinds, or `keyword`."""

    text: str
    kind: str
    detail: str = ""
    snippet: str = ""  # what is inserted, with places to fill as editors write them; "": the text


def words_at(checked: Checked, name: str, text: str, offset: int) -> list[Word]:
    """Return the words that an editor can offer at the offset, likely ones first. A partial word there is ignored."""
    tokens = [t for t in lex(text, name, Collector()).tokens if t.span.end <= offset and t.kind is not TokenKind.END]
    if tokens and tokens[-1].span.end == offset and tokens[-1].kind is TokenKind.NAME:
        tokens.pop()  # the partial word
    last = tokens[-1] if tokens else None
    declaration = _declaration_at_end(checked, tokens)
    if last is not None and last.text == "." and len(tokens) > 1:  # after `x.`
        return _fields_of(checked, tokens, declaration)
    if declaration.word == "":  # outside of all declarations
        return [Word(word, "keyword", snippet=_SNIPPETS.get(word, "")) for word in DECLARATIONS]
    if declaration.word == "event":
        return [Word(kind, "keyword") for kind in _KINDS]  # the types of fields
    if last is not None and last.text == ":" and declaration.word == "pattern":  # `where x:`, before an event type
        return [_event(e) for e in checked.resolved.events.values()]
    symbols = _symbols(checked, tokens)  # of an enum, after a comparison such as `status ==`
    return [*symbols, *_everything(checked, declaration)]


_OF_BOUND = (
    "Of a variable, it looks at the events that are bound so far: in the variable's own condition without the row "
    "under test, which SQL:2016 includes. To include it, write `(sum(x.price) + price) / (count(x) + 1)`."
)


@dataclass(frozen=True, slots=True)
class _Declaration:
    """The declaration that the offset is in."""

    word: str
    name: str
    pattern: PatternSyntax | None
    types: dict[str, str]  # variable → event type, also while the pattern cannot be parsed
    words: tuple[str, ...] = ()  # keywords that may follow


def _declaration_at_end(checked: Checked, tokens: list[Token]) -> _Declaration:
    """Find the declaration that contains the last token, and the event types of its variables so far."""
    position, nowhere = len(tokens) - 1, _Declaration("", "", None, {})  # nowhere: outside of all declarations
    while position >= 0 and not (tokens[position].first_on_line and tokens[position].text in DECLARATIONS):
        position -= 1
    if position < 0:
        return nowhere
    inside = tokens[position:]
    depth = sum((t.text == "{") - (t.text == "}") for t in inside if t.kind is TokenKind.SYMBOL)
    is_opened = any(t.text == "{" for t in inside)
    word = inside[0].text
    if word in ("event", "pattern", "test") and is_opened and depth <= 0:
        return nowhere  # after its last brace
    name = inside[1].text if len(inside) > 1 else ""
    types = {  # from each `variable: event_type` of the text, which may have mistakes
        name.text: type_.text for name, colon, type_ in zip(inside, inside[1:], inside[2:], strict=False)
        if colon.text == ":" and type_.text in checked.resolved.events
    }  # fmt: skip
    pattern = checked.resolved.patterns.get(name) if word == "pattern" else None
    if pattern is not None:
        types = {w.variable: w.event_type.name for w in pattern.wheres} | types  # the text is newer than `pattern`
    return _Declaration(word, name, pattern, types, _keywords(word, inside))


def _keywords(word: str, inside: list[Token]) -> tuple[str, ...]:
    """Return the keywords that may follow in a declaration with this first word; in a pattern, by its last clause."""
    if word == "test":
        return _IN_TEST
    if word != "pattern":
        return _IN_EXPRESSIONS
    if not any(token.text == "{" for token in inside):
        return ("by", "in")
    clause = next((t.text for t in reversed(inside) if t.first_on_line and t.text in _BY_CLAUSE), "")
    return (*_BY_CLAUSE.get(clause, ()), *_CLAUSES)


def _fields_of(checked: Checked, tokens: list[Token], declaration: _Declaration) -> list[Word]:
    """After `x.`, `last(x).` or `transaction.`."""
    owner = tokens[-2].text
    if owner == ")":
        owner = tokens[-3].text if len(tokens) > 2 else ""
    event = checked.resolved.events.get(declaration.types.get(owner, owner))
    events = list(checked.resolved.events.values())
    if event is None and len(events) == 1:
        event = events[0]
    return [] if event is None else [_field(f) for f in event.fields]


def _symbols(checked: Checked, tokens: list[Token]) -> list[Word]:
    """Yield the symbols of the enum that a value is compared with here."""
    position = len(tokens) - 1
    if position >= 0 and tokens[position].text in ("[", ","):
        while position > 0 and tokens[position].text not in ("[", "]"):
            position -= 1
        position -= 1  # of the `in` before the open bracket
        if tokens[position].text != "in":
            return []
        position -= tokens[position - 1].text == "not"
    elif position < 0 or tokens[position].text not in ("==", "!=", "="):
        return []
    name = tokens[position - 1].text if position > 0 else ""
    fields = [f for e in checked.resolved.events.values() for f in e.fields if f.name == name]
    return [Word(s, "symbol", name) for s in fields[0].type.symbols] if fields else []


def _everything(checked: Checked, declaration: _Declaration) -> Iterator[Word]:
    """Yield every name and keyword, for a place where nothing more is known."""
    names: set[str] = set()  # fields that are offered already
    used = set(declaration.types.values())  # the event types of the variables; if there are none, all types count
    for event in checked.resolved.events.values():
        for field in event.fields:
            if field.name not in names and (not used or event.name in used):
                names.add(field.name)
                yield _field(field)
    if declaration.pattern is not None:
        for param in declaration.pattern.params:
            yield Word(param.name, "parameter", param.type.name)
    for variable, type_name in declaration.types.items():
        yield Word(variable, "variable", type_name)
    for define in checked.resolved.defines.values():
        yield Word(define.name, "definition", ", ".join(p.name for p in define.params))
    for declared in checked.resolved.lists:
        yield Word(declared, "list")
    if declaration.word == "test":
        for pattern in checked.resolved.patterns:
            yield Word(pattern, "pattern")
    yield from (_event(e) for e in checked.resolved.events.values())
    for name, function in FUNCTIONS.items():
        yield Word(name, "function", function.shown)
    yield from (Word(word, "keyword") for word in declaration.words)


def _field(field: Field) -> Word:
    return Word(field.name, "field", str(field.type))


def _event(event: EventType) -> Word:
    return Word(event.name, "event", ", ".join(f.name for f in event.fields))


def keyword_meaning(word: str) -> str:
    """Return the meaning of a word of the language as Markdown; "" for another word."""
    return WORDS.get(word, "")


def meaning(checked: Checked, named: Named) -> str:
    """Describe a name as Markdown, for the hover text of an editor; "" if it has no meaning."""
    resolved = checked.resolved
    code, words = "", ""  # the declaration in short, and a sentence or the documentation below it
    if named.kind == "field":
        owners = [e for e in resolved.events.values() if e.field(named.name) is not None]
        if owners:
            code = f"{named.name}  {owners[0].types[named.name]}"
            words = f"field of {', '.join(f'`{e.name}`' for e in owners)}"
    elif named.kind == "event" and named.name in resolved.events:
        event = resolved.events[named.name]
        code = "\n".join([f"event {event.name}", *(f"  {f.name}  {f.type}" for f in event.fields)])
        declarations = (d for file in checked.files for d in file.declarations if isinstance(d, EventSyntax))
        words = next((d.doc for d in declarations if d.name == named.name), "")
    elif named.kind == "definition" and named.name in resolved.defines:
        define = resolved.defines[named.name]
        params = f"({', '.join(p.name for p in define.params)})" if define.params else ""
        code, words = f"define {define.name}{params} = {_source(checked, define.body.span)}", define.doc
    elif named.kind == "list" and named.name in resolved.lists:
        declared = resolved.lists[named.name]
        items = declared.items
        item_type = "" if declared.of is None else f": {_source(checked, declared.of.span)}"
        code = f"list {named.name}{item_type} = [{', '.join(_source(checked, i.span) for i in items[:20])}]"
        if declared.file is not None:  # the items are not in the text
            code = f"list {named.name}{item_type} from {_source(checked, declared.file.span)}"
        words = "\n\n".join(part for part in (declared.doc, f"{len(items)} items") if part)
    elif named.kind == "symbol":
        fields = {f.name: f for e in resolved.events.values() for f in e.fields if named.name in f.type.symbols}
        words = "symbol of " + ", ".join(f"`{name}`" for name in fields)
    elif named.kind == "function":
        code, words = FUNCTIONS[named.name].shown, _OF_BOUND if named.name in get_args(AggregateFn) else ""
    elif named.kind == "pattern" and named.name in resolved.patterns:
        code, words = f"pattern {named.name}", resolved.patterns[named.name].doc
    elif named.owner in resolved.patterns:  # a parameter, a variable or an emitted value
        code, words = _of_pattern(checked, named, resolved.patterns[named.owner])
    return "\n\n".join(part for part in (f"```cep\n{code}\n```" if code else "", words) if part)


def _of_pattern(checked: Checked, named: Named, pattern: PatternSyntax) -> tuple[str, str]:
    """Describe a parameter, a variable or an emitted value of a pattern: (code, words)."""
    if named.kind == "parameter":
        for param in pattern.params:
            if param.name == named.name:
                default = "" if param.default is None else f" = {_source(checked, param.default.span)}"
                return f"{param.name}: {_source(checked, param.type.span)}{default}", f"parameter of `{pattern.name}`"
    if named.kind == "variable":
        for where in pattern.wheres:
            if where.variable == named.name:
                condition = "" if where.condition is None else f"  {_source(checked, where.condition.span)}"
                return f"{where.variable}: {where.event_type.name}{condition}", f"variable of `{pattern.name}`"
    checked_pattern = checked.patterns.get(pattern.name)
    if named.kind == "value" and checked_pattern is not None:
        for measure in (*checked_pattern.measures, *(checked_pattern.timeout_measures or ())):
            if measure.name == named.name:
                kind = measure.value.type
                shown = "enum" if kind.kind is Kind.ENUM else str(kind)
                return f"{measure.name}: {shown}", f"value that `{pattern.name}` emits"
    return "", ""


def _source(checked: Checked, span: Span) -> str:
    return " ".join(checked.sources.get(span.file, "")[span.start : span.end].split())


def fixed(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> dict[str, str]:
    """Apply the fixes and return the changed texts. Of two fixes that overlap, only the first is applied."""
    texts: dict[str, str] = {}
    by_file: dict[str, dict[tuple[int, int], str]] = {}
    for diagnostic in diagnostics:
        if diagnostic.fix is not None and diagnostic.fix.span.file in sources:
            span = diagnostic.fix.span
            by_file.setdefault(span.file, {}).setdefault((span.start, span.end), diagnostic.fix.replacement)
    for file, changes in by_file.items():
        text = sources[file]
        parts: list[str] = []
        position = 0
        for (start, end), replacement in sorted(changes.items()):
            if start < position:
                continue
            parts += [text[position:start], replacement]
            position = end
        texts[file] = "".join([*parts, text[position:]])
    return texts
