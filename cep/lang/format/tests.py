"""A `test` block → its lines: one event a line, times right-aligned, equal fields below each other.

Tested by: tests/lang/test_format.py
"""

from bisect import bisect
from itertools import pairwise

from cep.lang.format.flow import WIDTH, Layout, Line, Piece, comment_lines, joined, without, wrap
from cep.lang.parse.lexer import TokenKind
from cep.lang.syntax import PatternTestSyntax

_INDENT = 2
_EVENTS_COLUMN = 6  # of events below a label that is too long for their line
_LABEL_MAX = 16
_TIME_LEAST = 3  # `20s` under ` 0s`


def test_lines(group: list[Piece], test: PatternTestSyntax) -> list[Line]:
    """Format one test, the tokens `group`: the label of each key with its events, one per line, and expectations."""
    positions = {piece.token.span.start: position for position, piece in enumerate(group)}  # by offset in the text
    brace = next(i for i, p in enumerate(group) if p.text == "{" and p.is_symbol)
    lines = wrap(group[: brace + 1], Layout(0, aligned="", keep_breaks=False))
    labels = {positions[key.label.span.start] for key in test.keys}
    expects = {positions[expect.span.start] for expect in test.expects}
    events = sorted(positions[event.span.start] for key in test.keys for event in key.events)
    todos = set() if test.todo_span is None else {positions[test.todo_span.start]}
    starts = sorted({*labels, *expects, *todos})  # the positions at which the entries of the test begin
    last = len(group) - 1  # the closing brace
    time_width = max([_TIME_LEAST, *(len(joined(group[i : _time_end(group, i)])) for i in events)])
    for begin, end in pairwise([*starts, last]):
        lines += comment_lines(group[begin], _INDENT, blanks=len(lines) > 1)  # no blank line after the opening brace
        if begin in labels:
            own_events = events[bisect(events, begin) : bisect(events, end)]
            lines += _key(group, begin, end, own_events, time_width)
        else:
            entry = without(group[begin:end], (";",))
            lines += wrap(entry, Layout(_INDENT, aligned="", keep_breaks=False))
    lines += comment_lines(group[last], _INDENT, blanks=False)
    return [*lines, Line(0, "}", group[last].end_comment)]


def _key(group: list[Piece], begin: int, end: int, event_begins: list[int], time_width: int) -> list[Line]:
    """Format tokens [begin, end), a key like `alice: 0s login, 20s payment`, with an event at each `event_begins`."""
    label_pieces = without(group[begin : event_begins[0] if event_begins else end], (";", ","))
    rows = [_Event(without(group[a:b], (",", ";"))) for a, b in pairwise([*event_begins, end])] if event_begins else []
    label = joined(label_pieces)
    lines: list[Line] = []
    column = _INDENT + len(label) + 1  # of the events
    prefix = f"{label} "  # only before the first event
    is_commented = any(p.end_comment for p in label_pieces) or any(p.has_comment for p in label_pieces[1:])
    if is_commented or len(label) > _LABEL_MAX or not rows or any(rows[0].pieces[0].comments):
        lines += wrap(label_pieces, Layout(_INDENT, aligned="", keep_breaks=False))  # without the author's breaks
        column, prefix = _EVENTS_COLUMN, ""  # the label has a line of its own
    _align(rows)
    for row in rows:
        lines += comment_lines(row.pieces[0], column, blanks=False)
        text = f"{row.time:>{time_width}}  {row.text}"
        lines += _wrapped(row, text, column, prefix, time_width)
        prefix = ""
    return lines


class _Event:
    """An event of a test, such as `20s payment amount=5 x3 every 1s`: its time, type and fields as texts."""

    def __init__(self, pieces: list[Piece]) -> None:
        """Divide the tokens (pieces) of `20s payment amount=5 x3 every 1s` into time, type, fields and repetition."""
        self.pieces = pieces
        position = _time_end(pieces, 0)
        self.time = joined(pieces[:position])
        self.type = pieces[position].text
        starts = [i for i in range(position + 1, len(pieces) - 1) if pieces[i + 1].text == "="]  # of fields: `name=`
        repeat = next((i for i in range(position + 1, len(pieces)) if _is_repeat(pieces, i)), len(pieces))
        self.names = [pieces[i].text for i in starts]  # events with the same names are aligned
        self.fields = [
            f"{pieces[a].text}={joined(pieces[a + 2 : b])}"  # pieces[a + 1] is the `=`
            for a, b in pairwise([*(s for s in starts if s < repeat), repeat])  # a field ends where the next begins
        ]
        self.repeat = joined(pieces[repeat:])  # `x3 every 1s`, or "" for an event that comes once
        self.widths = [len(text) for text in self.fields]  # `_align` widens them, to align events

    @property
    def text(self) -> str:
        padded = [f"{text:<{width}}" for text, width in zip(self.fields, self.widths, strict=True)]
        return " ".join([self.type, *padded, *([self.repeat] if self.repeat else [])]).rstrip()

    @property
    def end_comment(self) -> str:
        """Return all comments inside and after the event."""
        inside = [c for p in self.pieces[1:] for c in p.comments if c]  # a comment before the event stands above it
        return " ".join([*inside, *(p.end_comment for p in self.pieces if p.end_comment)])


def _time_end(pieces: list[Piece], position: int) -> int:
    """Return the position after the time that begins at `position`, such as `1 h 30s`."""
    while pieces[position].token.kind in (TokenKind.INT, TokenKind.DECIMAL, TokenKind.DURATION):
        has_unit = pieces[position].token.kind is TokenKind.DURATION
        position += 1 if has_unit else 2  # `20s` is one token, `20 s` are two
    return position


def _is_repeat(pieces: list[Piece], position: int) -> bool:
    """Return True if `x5 every 20s` begins here."""
    return position + 1 < len(pieces) and pieces[position + 1].text == "every" and pieces[position - 1].text != "="


def _align(rows: list[_Event]) -> None:
    """Give a column the same width in all events as long as they name the same fields."""
    for column in range(max((len(row.fields) for row in rows), default=0)):
        having = [row for row in rows if len(row.fields) > column]
        if len({(row.type, row.names[column]) for row in having}) > 1:
            return
        width = max(len(row.fields[column]) for row in having)
        for row in having:
            row.widths[column] = width


def _wrapped(row: _Event, text: str, column: int, prefix: str, time_width: int) -> list[Line]:
    """Write an event on one line if it fits, otherwise broken between fields. `prefix`, a label, ends at `column`."""
    first = Line(column - len(prefix), f"{prefix}{text}", row.end_comment)
    if column + len(text) <= WIDTH:
        return [first]
    indented = column + time_width + 4  # of the lines after the first: two more than the column of the event's type
    parts = [*row.fields, *([row.repeat] if row.repeat else [])]
    lines = [f"{row.time:>{time_width}}  {row.type}"]
    start = column  # of the current line
    for part in parts:
        if start + len(lines[-1]) + 1 + len(part) > WIDTH:
            lines.append(part)
            start = indented
        else:
            lines[-1] += f" {part}"
    rendered = [Line(column - len(prefix), f"{prefix}{lines[0]}"), *(Line(indented, line) for line in lines[1:])]
    rendered[-1].end_comment = row.end_comment
    return rendered
