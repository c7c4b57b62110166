"""A `test` block → its lines: one event a line, times right-aligned, equal fields below each other.

Tested by: tests/lang/test_format.py
"""

from itertools import pairwise

from cep.lang.format.flow import WIDTH, Layout, Line, Piece, comment_lines, flow, joined, without
from cep.lang.parse.lexer import TokenKind
from cep.lang.syntax import PatternTestSyntax

_INDENT = 2
_EVENTS_COLUMN = 6  # of events below a label that is too long for their line
_LABEL_MAX = 16
_TIME_LEAST = 3  # `20s` under ` 0s`


def test_lines(group: list[Piece], test: PatternTestSyntax) -> list[Line]:
    """Format one test. `group` are its tokens from `test` to the closing brace."""
    offsets = {piece.token.span.start: position for position, piece in enumerate(group)}
    brace = next(i for i, p in enumerate(group) if p.text == "{" and p.is_symbol)
    lines = flow(group[: brace + 1], Layout(0, aligned="", keep_breaks=False))
    labels = {offsets[key.label.span.start] for key in test.keys}
    expects = {offsets[expect.span.start] for expect in test.expects}
    events = {offsets[event.span.start] for key in test.keys for event in key.events}
    todos = set() if test.todo_span is None else {offsets[test.todo_span.start]}
    starts = sorted({*labels, *expects, *todos})
    last = len(group) - 1
    times = max([_TIME_LEAST, *(len(_Row(group[position:last]).time) for position in events)])
    for begin, end in pairwise([*starts, last]):
        lines += comment_lines(group[begin], _INDENT, blanks=len(lines) > 1)
        if begin in labels:
            lines += _key(group, begin, end, sorted(position for position in events if begin < position < end), times)
        else:
            entry = without(group[begin:end], (";",))
            lines += flow(entry, Layout(_INDENT, aligned="", keep_breaks=False))
    lines += comment_lines(group[last], _INDENT, blanks=False)
    return [*lines, Line(0, "}", group[last].trail)]


def _key(group: list[Piece], begin: int, end: int, events: list[int], times: int) -> list[Line]:
    head = without(group[begin : events[0] if events else end], (";", ","))
    rows = [_Row(without(group[a:b], (",", ";"))) for a, b in pairwise([*events, end])] if events else []
    label = joined(head)
    lines: list[Line] = []
    column = _INDENT + len(label) + 1
    prefix = f"{label} "
    commented = any(p.trail for p in head) or any(p.has_comment for p in head[1:])
    if commented or len(label) > _LABEL_MAX or not rows or any(rows[0].pieces[0].lead):
        lines += flow(head, Layout(_INDENT, aligned="", keep_breaks=False))
        column, prefix = _EVENTS_COLUMN, ""
    _align(rows)
    for row in rows:
        lines += comment_lines(row.pieces[0], column, blanks=False)
        text = f"{row.time:>{times}}  {row.text}"
        lines += _wrapped(row, text, column, prefix, times)
        prefix = ""
    return lines


class _Row:
    """An event of a test: its time, type and fields as texts."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        position = 0
        while pieces[position].token.kind in (TokenKind.INT, TokenKind.DECIMAL, TokenKind.DURATION):
            position += 1 if pieces[position].token.kind is TokenKind.DURATION else 2
        self.time = joined(pieces[:position])
        self.type = pieces[position].text
        starts = [i for i in range(position + 1, len(pieces) - 1) if pieces[i + 1].text == "="]
        tail = next((i for i in range(position + 1, len(pieces)) if _is_repeat(pieces, i)), len(pieces))
        self.names = [pieces[i].text for i in starts]
        self.fields = [
            f"{pieces[a].text}={joined(pieces[a + 2 : b])}"
            for a, b in pairwise([*(s for s in starts if s < tail), tail])
        ]
        self.repeat = joined(pieces[tail:])
        self.widths = [len(text) for text in self.fields]

    @property
    def text(self) -> str:
        padded = [f"{text:<{width}}" for text, width in zip(self.fields, self.widths, strict=True)]
        return " ".join([self.type, *padded, *([self.repeat] if self.repeat else [])]).rstrip()

    @property
    def trail(self) -> str:
        """Return all comments inside and after the event."""
        inside = [c for p in self.pieces[1:] for c in p.lead if c]
        return " ".join([*inside, *(p.trail for p in self.pieces if p.trail)])


def _is_repeat(pieces: list[Piece], position: int) -> bool:
    """Return True if `x5 every 20s` begins here."""
    return position + 1 < len(pieces) and pieces[position + 1].text == "every" and pieces[position - 1].text != "="


def _align(rows: list[_Row]) -> None:
    """Give a column the same width in all events as long as they name the same fields."""
    for column in range(max((len(row.fields) for row in rows), default=0)):
        having = [row for row in rows if len(row.fields) > column]
        if len({(row.type, *row.names[: column + 1]) for row in having}) > 1:
            return
        for row in having:
            row.widths[column] = max(len(other.fields[column]) for other in having)


def _wrapped(row: _Row, text: str, column: int, prefix: str, times: int) -> list[Line]:
    first = Line(column - len(prefix), f"{prefix}{text}", row.trail)
    if column + len(text) <= WIDTH:
        return [first]
    inside = column + times + 4
    words = [*row.fields, *([row.repeat] if row.repeat else [])]
    lines = [f"{row.time:>{times}}  {row.type}"]
    width = column
    for word in words:
        if width + len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
            width = inside
        else:
            lines[-1] += f" {word}"
    rendered = [Line(column - len(prefix), f"{prefix}{lines[0]}"), *(Line(inside, line) for line in lines[1:])]
    rendered[-1].trail = row.trail
    return rendered
