"""A `test` block → its lines: one event a line, times right-aligned, equal fields below each other.

Tested by: tests/lang/test_format.py
"""

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
    offsets = {piece.token.span.start: position for position, piece in enumerate(group)}
    brace = next(i for i, p in enumerate(group) if p.text == "{" and p.is_symbol)
    lines = wrap(group[: brace + 1], Layout(0, aligned="", keep_breaks=False))
    labels = {offsets[key.label.span.start] for key in test.keys}
    expects = {offsets[expect.span.start] for expect in test.expects}
    events = {offsets[event.span.start] for key in test.keys for event in key.events}
    todos = set() if test.todo_span is None else {offsets[test.todo_span.start]}
    starts = sorted({*labels, *expects, *todos})
    last = len(group) - 1
    time_width = max([_TIME_LEAST, *(len(_Event(group[position:last]).time) for position in events)])
    for begin, end in pairwise([*starts, last]):
        lines += comment_lines(group[begin], _INDENT, blanks=len(lines) > 1)
        if begin in labels:
            lines += _key(group, begin, end, sorted(e for e in events if begin < e < end), time_width)
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
    column = _INDENT + len(label) + 1
    prefix = f"{label} "
    is_commented = any(p.end_comment for p in label_pieces) or any(p.has_comment for p in label_pieces[1:])
    if is_commented or len(label) > _LABEL_MAX or not rows or any(rows[0].pieces[0].comments):
        lines += wrap(label_pieces, Layout(_INDENT, aligned="", keep_breaks=False))
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
        position = 0
        while pieces[position].token.kind in (TokenKind.INT, TokenKind.DECIMAL, TokenKind.DURATION):
            has_unit = pieces[position].token.kind is TokenKind.DURATION
            position += 1 if has_unit else 2  # `20s` is one token, `20 s` are two
        self.time = joined(pieces[:position])
        self.type = pieces[position].text
        starts = [i for i in range(position + 1, len(pieces) - 1) if pieces[i + 1].text == "="]  # each field's name
        repeat = next((i for i in range(position + 1, len(pieces)) if _is_repeat(pieces, i)), len(pieces))
        self.names = [pieces[i].text for i in starts]  # events with the same names are aligned
        self.fields = [
            f"{pieces[a].text}={joined(pieces[a + 2 : b])}"
            for a, b in pairwise([*(s for s in starts if s < repeat), repeat])
        ]
        self.repeat = joined(pieces[repeat:])
        self.widths = [len(text) for text in self.fields]  # `_align` widens them, to align events

    @property
    def text(self) -> str:
        padded = [f"{text:<{width}}" for text, width in zip(self.fields, self.widths, strict=True)]
        return " ".join([self.type, *padded, *([self.repeat] if self.repeat else [])]).rstrip()

    @property
    def end_comment(self) -> str:
        """Return all comments inside and after the event."""
        inside = [c for p in self.pieces[1:] for c in p.comments if c]
        return " ".join([*inside, *(p.end_comment for p in self.pieces if p.end_comment)])


def _is_repeat(pieces: list[Piece], position: int) -> bool:
    """Return True if `x5 every 20s` begins here."""
    return position + 1 < len(pieces) and pieces[position + 1].text == "every" and pieces[position - 1].text != "="


def _align(rows: list[_Event]) -> None:
    """Give a column the same width in all events as long as they name the same fields."""
    for column in range(max((len(row.fields) for row in rows), default=0)):
        having = [row for row in rows if len(row.fields) > column]
        if len({(row.type, *row.names[: column + 1]) for row in having}) > 1:
            return
        for row in having:
            row.widths[column] = max(len(other.fields[column]) for other in having)


def _wrapped(row: _Event, text: str, column: int, prefix: str, time_width: int) -> list[Line]:
    """Write an event on one line if it fits, otherwise broken between its fields. `prefix` is text before `column`."""
    first = Line(column - len(prefix), f"{prefix}{text}", row.end_comment)
    if column + len(text) <= WIDTH:
        return [first]
    indented = column + time_width + 4  # two more than the event's type
    words = [*row.fields, *([row.repeat] if row.repeat else [])]
    lines = [f"{row.time:>{time_width}}  {row.type}"]
    start = column
    for word in words:
        if start + len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
            start = indented
        else:
            lines[-1] += f" {word}"
    rendered = [Line(column - len(prefix), f"{prefix}{lines[0]}"), *(Line(indented, line) for line in lines[1:])]
    rendered[-1].end_comment = row.end_comment
    return rendered
