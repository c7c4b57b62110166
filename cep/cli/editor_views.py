"""Documents of an editor's workspace → outline, folding, highlights, links, signatures, hints.

Most need only the heads of declarations (cep/lang/edit/heads.py). What needs a check waits for it outside of typing.
Tested by: tests/cli/test_lsp.py
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from cep.cli.editor_texts import Snapshot, Texts, pattern_files
from cep.lang.edit.heads import Head, heads
from cep.lang.edit.symbols import place_at
from cep.lang.format.file import format_text
from cep.lang.functions import FUNCTIONS
from cep.lang.load import file_name

_SYMBOL_KINDS = {
    "event": types.SymbolKind.Struct,
    "import": types.SymbolKind.File,
    "list": types.SymbolKind.Array,
    "define": types.SymbolKind.Function,
    "pattern": types.SymbolKind.Class,
    "test": types.SymbolKind.Method,
}
TOKEN_TYPES = ("class", "property", "enumMember", "variable", "parameter", "function", "type")
_TOKEN_TYPES = {
    "event": "type", "field": "property", "symbol": "enumMember", "list": "variable", "definition": "function",
    "argument": "parameter", "pattern": "class", "parameter": "parameter", "variable": "variable", "value": "property",
    "function": "function",
}  # fmt: skip
_SYMBOLS_MAX = 500
_CALL_MAX = 4_000  # characters before a place in which the bracket of its call is looked for
_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*')
_NAME_BEFORE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*$")
_BRACKETS = {")": "(", "]": "[", "}": "{"}


def add_views(served: LanguageServer, texts: Texts) -> None:
    """Let the server answer questions about the structure of documents."""
    _add_outline(served, texts)
    _add_marks(served, texts)
    _add_help(served, texts)


def _add_outline(served: LanguageServer, texts: Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def outline(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        source = texts.source(params.text_document.uri)
        return [
            types.DocumentSymbol(
                name=head.name,
                kind=_SYMBOL_KINDS[head.word],
                detail=f"of {head.tested}" if head.tested else "",
                range=texts.range_of(source, head.start, head.start + len(source[head.start : head.end].rstrip())),
                selection_range=texts.range_of(source, head.name_start, head.name_end),
            )
            for head in heads(source)
            if head.name
        ]

    @served.feature(types.WORKSPACE_SYMBOL)
    def find(params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
        """Return each declaration of the workspace whose name has the letters of the query, in their order."""
        symbols: list[types.WorkspaceSymbol] = []
        letters = re.compile(".*?".join(map(re.escape, params.query)), re.IGNORECASE)
        for uri in _documents(served, texts):
            source = texts.source(uri)
            for head in heads(source):
                if head.word not in ("import", "test") and head.name and letters.search(head.name):
                    place = types.Location(uri, texts.range_of(source, head.name_start, head.name_end))
                    symbols.append(types.WorkspaceSymbol(place, head.name, _SYMBOL_KINDS[head.word]))
        return symbols[:_SYMBOLS_MAX]

    @served.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    def folds(params: types.FoldingRangeParams) -> list[types.FoldingRange]:
        source = texts.source(params.text_document.uri)
        ranges: list[types.FoldingRange] = []
        for head in heads(source):
            first = texts.position(source, head.name_start if head.name else head.start).line
            last = texts.position(source, head.start + len(source[head.start : head.end].rstrip())).line
            if last > first:
                ranges.append(types.FoldingRange(first, last, kind=types.FoldingRangeKind.Region))
        return ranges

    @served.feature(types.TEXT_DOCUMENT_SELECTION_RANGE)
    def selections(params: types.SelectionRangeParams) -> list[types.SelectionRange]:
        """Return for each place the word, the brackets around it from the inside to the outside, the declaration."""
        source = texts.source(params.text_document.uri)
        return [_selection(texts, source, texts.offset(source, place)) for place in params.positions]

    @served.feature(types.TEXT_DOCUMENT_DOCUMENT_LINK)
    def links(params: types.DocumentLinkParams) -> list[types.DocumentLink]:
        uri = params.text_document.uri
        source = texts.source(uri)
        return [
            types.DocumentLink(
                texts.range_of(source, head.name_start + 1, head.name_end - 1), target=texts.beside(uri, head.name)
            )
            for head in heads(source)
            if head.word == "import" and head.name
        ]


def _documents(served: LanguageServer, texts: Texts) -> Iterable[str]:
    opened: list[str] = list(served.workspace.text_documents)
    root = served.workspace.root_path
    files = [] if root is None or "\0" in root else pattern_files(Path(root))
    return dict.fromkeys([*opened, *(texts.uri(file_name(path)) for path in files)])


def _selection(texts: Texts, source: str, offset: int) -> types.SelectionRange:
    ranges: list[tuple[int, int]] = [(0, len(source))]
    head = _head_at(source, offset)
    if head is not None:
        end = head.start + len(source[head.start : head.end].rstrip())
        ranges += [(head.start, end), *_brackets(source, head.start, end, offset)]
    start, end = offset, offset
    while start > 0 and _is_word(source[start - 1]):
        start -= 1
    while end < len(source) and _is_word(source[end]):
        end += 1
    around: types.SelectionRange | None = None
    for low, high in (*ranges, (start, end)):
        around = types.SelectionRange(texts.range_of(source, low, high), around)
    assert around is not None, "the whole text is around each place"
    return around


def _brackets(source: str, start: int, end: int, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the insides of the brackets around an offset, from the outside to the inside."""
    code = _TEXT_OR_COMMENT.sub(lambda match: " " * len(match[0]), source[start:end])
    opened: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    for index, letter in enumerate(code):
        if letter in "([{":
            opened.append((letter, index))
        elif letter in _BRACKETS and opened and opened[-1][0] == _BRACKETS[letter]:
            pairs.append((opened.pop()[1] + 1 + start, index + start))
    yield from sorted(pair for pair in pairs if pair[0] <= offset <= pair[1])


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _head_at(source: str, offset: int) -> Head | None:
    return next((head for head in heads(source) if head.start <= offset <= head.end), None)


def _add_marks(served: LanguageServer, texts: Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    async def highlights(params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
        """Return the places in the document of the name at a position."""
        uri = params.text_document.uri
        snapshot = await texts.latest(uri)
        name, source = texts.name(uri), texts.source(uri)
        target = place_at(snapshot.in_file(name), name, texts.offset(source, params.position))
        same = (
            [] if target is None else [place for place in snapshot.places_of(target.named) if place.span.file == name]
        )
        return [
            types.DocumentHighlight(
                texts.range_of(source, place.span.start, place.span.end),
                types.DocumentHighlightKind.Write if place.declares else types.DocumentHighlightKind.Read,
            )
            for place in same
        ]

    @served.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, types.SemanticTokensLegend(list(TOKEN_TYPES), []))
    async def tokens(params: types.SemanticTokensParams) -> types.SemanticTokens:
        """Return the kind of each name, five numbers each: lines and characters from the one before, length, kind."""
        uri = params.text_document.uri
        snapshot = await texts.latest(uri)
        name, source = texts.name(uri), texts.source(uri)
        data: list[int] = []
        before = types.Position(0, 0)
        for place in sorted(snapshot.in_file(name), key=lambda place: place.span.start):
            token_range = texts.range_of(source, place.span.start, place.span.end)
            kind = _TOKEN_TYPES.get(place.named.kind)
            if kind is None or token_range.start.line != token_range.end.line or token_range.start < before:
                continue
            lines = token_range.start.line - before.line
            characters = token_range.start.character - (0 if lines else before.character)
            data += [
                lines,
                characters,
                token_range.end.character - token_range.start.character,
                TOKEN_TYPES.index(kind),
                0,
            ]
            before = token_range.start
        return types.SemanticTokens(data)

    @served.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    async def hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        """Return the type of each value that a pattern emits."""
        uri = params.text_document.uri
        snapshot = await texts.latest(uri)
        name, source = texts.name(uri), texts.source(uri)
        first, last = (texts.offset(source, place) for place in (params.range.start, params.range.end))
        return [
            types.InlayHint(texts.position(source, end), f": {kind}", types.InlayHintKind.Type)
            for end, kind in _types_of_values(snapshot, name)
            if first <= end <= last
        ]


def _types_of_values(snapshot: Snapshot, name: str) -> Iterator[tuple[int, str]]:
    for pattern in snapshot.checked.resolved.patterns.values():
        checked = snapshot.checked.patterns.get(pattern.name)
        if pattern.span.file != name or checked is None:
            continue
        types_by_name = {m.name: m.value.type for m in (*checked.measures, *(checked.timeout_measures or ()))}
        for measure in (*pattern.measures, *(pattern.timeout_measures or ())):
            if measure.name in types_by_name:
                yield measure.span.end, str(types_by_name[measure.name])


def _add_help(served: LanguageServer, texts: Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_SIGNATURE_HELP, types.SignatureHelpOptions(trigger_characters=["(", ","]))
    def signature(params: types.SignatureHelpParams) -> types.SignatureHelp | None:
        """Return the signature of the function or definition around a position, and which argument is there."""
        uri = params.text_document.uri
        source = texts.source(uri)
        offset = texts.offset(source, params.position)
        called = _call_around(source, offset)
        if called is None:
            return None
        name, argument = called
        define = texts.near(uri, offset).checked.resolved.defines.get(name)
        if define is not None:
            arguments = [param.name for param in define.params]
            label, words = f"{name}({', '.join(arguments)})", define.doc
        elif name in FUNCTIONS:
            label, _, words = FUNCTIONS[name].shown.partition(": ")
            arguments = re.findall(r"[^(),]+", label.partition("(")[2])
        else:
            return None
        shown = [types.ParameterInformation(argument.strip()) for argument in arguments]
        return types.SignatureHelp([types.SignatureInformation(label, words or None, shown)], 0, argument)

    @served.feature(types.TEXT_DOCUMENT_RANGE_FORMATTING)
    def format_range(params: types.DocumentRangeFormattingParams) -> list[types.TextEdit]:
        """Format the declarations that a range touches."""
        source = texts.source(params.text_document.uri)
        first, last = (texts.offset(source, place) for place in (params.range.start, params.range.end))
        edits: list[types.TextEdit] = []
        for head in heads(source):
            whole = source[head.start : head.end].rstrip()
            if head.start <= last and first <= head.start + len(whole):
                formatted, _ = format_text(whole)
                if formatted is not None and formatted.rstrip() != whole:
                    place = texts.range_of(source, head.start, head.start + len(whole))
                    edits.append(types.TextEdit(place, formatted.rstrip()))
        return edits


def _call_around(source: str, offset: int) -> tuple[str, int] | None:
    """Return the name before the open bracket that contains an offset, and the number of commas since then."""
    start = max(0, offset - _CALL_MAX)
    code = _TEXT_OR_COMMENT.sub(lambda match: " " * len(match[0]), source[start:offset])
    closed, commas = 0, 0  # brackets that are closed, and not opened yet
    for index in range(len(code) - 1, -1, -1):
        letter = code[index]
        if letter in ")]":
            closed += 1
        elif letter in "([":
            if closed == 0:
                name = _NAME_BEFORE.search(code[:index]) if letter == "(" else None
                return None if name is None else (name[1], commas)
            closed -= 1
        elif letter == "," and closed == 0:
            commas += 1
        elif letter in "{}":
            return None
    return None
