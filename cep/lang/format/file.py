"""The text of a pattern file → the same text in the canonical layout.

Works on tokens, so that nothing that was written can be lost: only spaces, line ends and separators that mean nothing
change, comments stay where they are. The syntax tree says where the declarations are.
Tested by: tests/lang/test_format.py
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from cep.base.process import paused
from cep.lang.diagnostics import Collector, Diagnostic
from cep.lang.format.flow import WIDTH, Layout, Line, Piece, Style, comment_lines, joined, pieces, without, wrap
from cep.lang.format.tests import test_lines
from cep.lang.parse.file import parse_tokens
from cep.lang.parse.lexer import CLAUSE_WORDS, Cursor, TokenKind, lex
from cep.lang.syntax import Declaration, ImportSyntax, PatternTestSyntax

INDENT = 2
_CLAUSE_COLUMN = 9  # two for the indentation, five for the longest word, two spaces
_TIGHT = ("import", "list", "define")  # declarations that may stand on neighbouring lines


def format_text(text: str, name: str = "<text>") -> tuple[str | None, list[Diagnostic]]:
    """Format a text. Return the new text, or None and the syntax errors. Formatting twice changes nothing.

    Cost: linear in the text.
    """
    collector = Collector()
    with paused():  # without garbage collection, which would walk all tokens again and again
        lexed = lex(text, name, collector)
        file = parse_tokens(Cursor(lexed.tokens, collector), name)
        if collector.error_count:
            return None, collector.diagnostics
        return _written(_file(pieces(lexed, text), file.declarations)), []


def _written(lines: Iterable[Line]) -> str:
    out: list[str] = []
    for line in lines:
        text = f"{' ' * line.column if line.text else ''}{line.text}"
        out.append(f"{text}  {line.end_comment}" if line.end_comment else text)
    while out and not out[-1]:
        out.pop()
    return "".join(f"{line}\n" for line in out)


def _file(pieces: list[Piece], declarations: Sequence[Declaration]) -> list[Line]:
    """Format all declarations of a file. Blank lines separate them, except two short ones (`_TIGHT`) or two tests."""
    by_offset = {piece.token.span.start: position for position, piece in enumerate(pieces)}
    # A declaration begins with a word such as `list`. Only the span of an import begins there, the others at the name.
    starts = [by_offset[d.span.start] - (0 if isinstance(d, ImportSyntax) else 1) for d in declarations]
    starts.append(len(pieces) - 1)  # the last piece is the end of the file
    lines: list[Line] = []
    before = ""  # the word of the declaration before
    for (begin, end), declaration in zip(pairwise(starts), declarations, strict=True):
        group = pieces[begin:end]
        word = group[0].text  # the kind of the declaration, such as `pattern`
        comments = list(group[0].comments)
        wanted_blank = (word not in _TIGHT or before not in _TIGHT) and not word == before == "test"
        had_blank = bool(comments) and comments[0] == ""  # a blank line of the author
        comments = comments[1:] if had_blank else comments
        if lines and (wanted_blank or had_blank):
            lines.append(Line(0, ""))
        lines += [Line(0, text) for text in comments]
        if isinstance(declaration, PatternTestSyntax):
            lines += test_lines(group, declaration)
        else:
            lines += _FORMS[word](group)  # the function that formats this kind
        before = word
    last = pieces[-1]  # it has the comments at the end of the file
    lines += comment_lines(last, 0, blanks=bool(lines))
    return lines


def _simple(group: list[Piece]) -> list[Line]:
    """Format `import` and `define`, which are one expression."""
    start = next((i for i, p in enumerate(group, start=1) if p.text == "="), None)
    return wrap(group, Layout(0)) if start is None else _with_head(group[:start], group[start:], 2 * INDENT, 0)


def _list(group: list[Piece]) -> list[Line]:
    """Format `list name = [a, b]`: on one line if it fits, otherwise with the items on lines between the brackets."""
    start = next((i for i, p in enumerate(group, start=1) if p.text == "["), None)  # of the first item
    if start is None:  # the items are not written here
        return wrap(group, Layout(0))
    if _is_short(group):
        return [Line(0, joined(group), group[-1].end_comment)]
    lines, items = wrap(group[:start], Layout(0)), group[start:-1]
    if items:
        lines += comment_lines(items[0], INDENT, blanks=False)
        lines += wrap(items, Layout(INDENT, aligned="comma"))  # a line that begins after a comma is not indented more
    lines += comment_lines(group[-1], INDENT, blanks=False)
    return [*lines, Line(0, "]", group[-1].end_comment)]


def _is_short(group: list[Piece]) -> bool:
    """Return True without a comment in between, and short enough for one line."""
    is_commented = any(p.has_comment for p in group[1:]) or any(p.end_comment for p in group[:-1])
    return not is_commented and len(joined(group)) <= WIDTH


def _with_head(head: list[Piece], body: list[Piece], indent: int, column: int) -> list[Line]:
    """Write `head` and `body` on the same line. Comments in between move the body to lines of its own."""
    if not body:
        return wrap(head, Layout(column))
    if any(p.has_comment for p in (*head[1:], body[0])) or any(p.end_comment for p in head):
        lines = wrap(head, Layout(column))
        lines += comment_lines(body[0], column + indent, blanks=False)
        return lines + wrap(body, Layout(column + indent))
    text = joined(head) + " "
    return wrap(body, Layout(column + len(text), prefix=text))


def _event(group: list[Piece]) -> list[Line]:
    """Format an event type: one field per line, in columns of names, types and comments."""
    lines = wrap(group[:3], Layout(0))  # `event NAME {`
    rows = _rows(without(group[3:-1], (";",)))  # the fields, without the closing brace
    first_width = max((len(row[0].text) for row in rows), default=0)  # of the column of names
    # A field may be written `name: type`. The colon, row[1], is left out.
    types = [row[2:] if [p.text for p in row[1:2]] == [":"] else row[1:] for row in rows]
    texts = [f"{row[0].text:<{first_width}}  {joined(type_)}".rstrip() for row, type_ in zip(rows, types, strict=True)]
    row_comments = [
        [p.end_comment for p in row if p.end_comment] + [c for p in row[1:] for c in p.comments if c] for row in rows
    ]
    width = max((len(text) for text, comments in zip(texts, row_comments, strict=True) if comments), default=0)
    for row, text, comments in zip(rows, texts, row_comments, strict=True):
        blanks = len(lines) > 1  # blank lines stay, but not directly after the opening brace
        lines += comment_lines(row[0], INDENT, blanks=blanks)
        lines.append(Line(INDENT, f"{text:<{width}}" if comments else text, " ".join(comments)))
    lines += comment_lines(group[-1], INDENT, blanks=False)
    return [*lines, Line(0, "}", group[-1].end_comment)]


def _rows(group: list[Piece]) -> list[list[Piece]]:
    """Divide the tokens of an event type into lines: `amount decimal(2)`, `card string sensitive`, `order by seq`."""
    rows: list[list[Piece]] = []
    depth = 0
    has_type = True  # the current row has its type, so that a name begins the next row
    for position, piece in enumerate(group):
        if depth == 0 and piece.text == ",":
            last = rows[-1][-1]  # the comma between two fields is left out, and its comment moves to the field
            last.end_comment = " ".join(c for c in (last.end_comment, *piece.comments, piece.end_comment) if c)
            continue
        is_order = bool(rows) and [p.text for p in rows[-1][:3]] == ["order", "by"]
        may_end = has_type and piece.text == "sensitive"  # after a type; it may also name the next field
        if depth == 0 and (is_order or (may_end and _ends_field(piece, group[position + 1 : position + 2]))):
            rows[-1].append(piece)
            continue
        is_name = piece.token.kind is TokenKind.NAME
        if depth == 0 and is_name and has_type:
            rows.append([])
            has_type = False
        elif depth == 0 and (is_name or piece.token.kind is TokenKind.DURATION):
            has_type = True  # in `retain 30d`, a duration has the place of the type
        rows[-1].append(piece)
        depth += (piece.text == "(") - (piece.text == ")")
    return rows


def _ends_field(word: Piece, following: list[Piece]) -> bool:
    """Return True for `sensitive` after a type, False if it is the name of a field."""
    if word.token.first_on_line or word.token.kind is not TokenKind.NAME:
        return False
    return not following or following[0].token.first_on_line or following[0].text == ","


def _pattern(group: list[Piece]) -> list[Line]:
    """Format a pattern: its name and parameters, its key on the next line, and its clauses in braces."""
    by = _index(group, 0, "by")
    brace = _index(group, by, "{")
    lines = wrap(group[:by], Layout(0, aligned="", keep_breaks=False))  # line breaks of the author are not kept
    lines += comment_lines(group[by], INDENT, blanks=False)
    lines += wrap(group[by:brace], Layout(INDENT, aligned="", keep_breaks=False))
    lines += [*comment_lines(group[brace], 0, blanks=False), Line(0, "{", group[brace].end_comment)]
    body = without(group[brace + 1 : -1], (";",))
    for begin, end in _clauses(body):
        lines += comment_lines(body[begin], INDENT, blanks=False)
        lines += _clause(body[begin:end])
    lines += comment_lines(group[-1], INDENT, blanks=False)
    return [*lines, Line(0, "}", group[-1].end_comment)]


def _index(group: list[Piece], start: int, text: str) -> int:
    return next(i for i in range(start, len(group)) if group[i].text == text)


def _clauses(body: list[Piece]) -> list[tuple[int, int]]:
    """Find the tokens [start, end) of each clause of a pattern, which begins with a word such as `seq` or `emit`."""
    starts: list[int] = []
    depth = 0  # of brackets, in which no clause begins
    for position, piece in enumerate(body):
        if piece.is_symbol:
            depth += (piece.text in ("(", "[", "{")) - (piece.text in (")", "]", "}"))
            continue
        if depth or (piece.text not in CLAUSE_WORDS and piece.text not in ("over", "on")):
            continue
        follows = body[position + 1].text if position + 1 < len(body) else ""
        is_word = piece.text in CLAUSE_WORDS or (piece.text, follows) in (("over", "all"), ("on", "timeout"))
        is_in_on_timeout_emit = bool(starts) and body[starts[-1]].text == "on" and position - starts[-1] <= 2
        if piece.token.kind is TokenKind.NAME and is_word and not is_in_on_timeout_emit:
            starts.append(position)  # the `emit` of `on timeout emit` begins no other clause
    return list(pairwise([*starts, len(body)]))


def _clause(group: list[Piece]) -> list[Line]:
    """Format one clause: its word or words at the left, and its content in a column."""
    word = group[0].text
    words_count = 3 if word == "on" else 1  # `on timeout emit`
    head, body = group[:words_count], group[words_count:]
    column = _CLAUSE_COLUMN  # of the content
    if word == "where":
        return _where(head[0], body)
    layout = {
        "seq": Layout(column, Style.STRUCTURE, "link"),
        "emit": Layout(column, Style.EXPRESSION, "comma"),
        "produce": Layout(INDENT + len("produce  ")),
        "on": Layout(INDENT + len("on timeout emit  "), Style.EXPRESSION, "comma"),
    }.get(word, Layout(column))  # such as `skip`
    comments = [p.end_comment for p in head if p.end_comment]
    comments += [c for p in (*head[1:], *body[:1]) for c in p.comments if c]
    if comments:  # comments between the word and the content: the content begins on the next line
        lines = [Line(INDENT, " ".join(p.text for p in head), comments[0])]
        lines += [Line(layout.column, comment) for comment in comments[1:]]
        return lines + wrap(body, layout)
    text = " ".join(p.text for p in head)
    return wrap(body, replace(layout, prefix=f"{text:<{layout.column - INDENT}}"))  # blanks up to the content


def _where(word: Piece, body: list[Piece]) -> list[Line]:
    """Format a `where` clause: one variable per line, in columns of names, types and conditions."""
    entries = _entries(body)
    name_width = max(len(name.text) for name, *_ in entries)
    type_width = max(len(type_.text) for _, _, type_, *_ in entries)
    has_own_line = bool(word.end_comment) or entries[0][0].has_comment
    lines = [Line(INDENT, word.text, word.end_comment)] if has_own_line else []
    for number, entry in enumerate(entries):  # without comments, the first one is on the line of the word `where`
        name, colon, type_, *condition = entry
        lines += comment_lines(name, _CLAUSE_COLUMN, blanks=False)
        head = f"{name.text + ':':<{name_width + 1}} {type_.text:<{type_width}}  "  # such as `a: payment  `
        column = _CLAUSE_COLUMN + len(head)
        prefix = head if number or has_own_line else f"{word.text:<{_CLAUSE_COLUMN - INDENT}}{head}"
        comments = [p.end_comment for p in (name, colon, type_) if p.end_comment]
        comments += [c for p in (colon, type_, *condition[:1]) for c in p.comments if c]
        if comments:  # they stand behind the name and the type, and the condition begins on the next line
            lines.append(Line(column - len(prefix), prefix.rstrip(), " ".join(comments)))
            lines += wrap(condition, Layout(column))
        else:
            lines += wrap(condition, Layout(column, prefix=prefix))
    return lines


def _entries(body: list[Piece]) -> list[list[Piece]]:
    """Divide the body of `where` into entries `name : type condition`, without the commas between them."""
    starts: list[int] = []
    depth = 0
    for position, piece in enumerate(body):
        follows = body[position + 1].text if position + 1 < len(body) else ""
        if piece.is_symbol:
            depth += (piece.text in ("(", "[", "{")) - (piece.text in (")", "]", "}"))
        elif depth == 0 and piece.token.kind is TokenKind.NAME and follows == ":":
            starts.append(position)  # a name before a colon begins an entry
    groups: list[list[Piece]] = []
    for begin, end in pairwise([*starts, len(body)]):
        entry = body[begin:end]
        if entry[-1].text == "," and entry[-1].token.kind is TokenKind.SYMBOL:
            comma = entry.pop()  # its comments stay, behind the token before it
            trailing = " ".join(c for c in (entry[-1].end_comment, *comma.comments, comma.end_comment) if c)
            entry[-1] = Piece(entry[-1].token, entry[-1].comments, trailing)
        groups.append(entry)
    return groups


_FORMS: dict[str, Callable[[list[Piece]], list[Line]]] = {
    "import": _simple,
    "define": _simple,
    "list": _list,
    "event": _event,
    "pattern": _pattern,
}
