"""Tokens with their comments → lines of at most a width: spacing, and where a line may be broken.

Nothing is added or lost: the tokens of the lines are the tokens that came in. Breaks of the author are kept where a
line may be broken; a line that is too long gets more of them, at the weakest place that leaves a line which fits.
Tested by: tests/lang/test_format.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from cep.lang.parse.lexer import Lexed, Token, TokenKind

WIDTH = 120
INDENT_MORE = 4  # of a line that goes on in the middle of something

_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")
# Words after which a value is still to come, so that a `-` is a sign and a `(` opens a group.
_BEFORE_A_VALUE = frozenset(
    "and or not in between like matches is if then else by until over where with".split()  # noqa: SIM905
)


class Style(Enum):
    """The construct that tokens belong to. It decides on spaces and gaps."""

    EXPRESSION = "expression"
    STRUCTURE = "structure"


_NO_SPACE_BEFORE = frozenset((",", ")", "]", ".", ":", "?", ".."))
_NO_SPACE_AFTER = frozenset(("(", "[", ".", ".."))
# The binding strength of an operator: lines are broken at the weakest. The second value is for the indentation.
_RANKS = {
    **dict.fromkeys(("and", "or"), (1, "and")),
    **dict.fromkeys(("then", "else"), (2, "")),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in", "between", "like", "matches", "is"), (3, "")),
    **dict.fromkeys(("+", "-"), (4, "")),
    **dict.fromkeys(("*", "/", "%"), (5, "")),
}
_COMMA = (0, "comma")
_LINK_RANKS = {**dict.fromkeys(("->", "->>", "|", "&"), (1, "link")), "within": (0, "link")}


@dataclass(slots=True)
class Piece:
    """A token, the comment lines before it ("" is a blank line), and the comment after it on its line."""

    token: Token
    comments: tuple[str, ...] = ()
    end_comment: str = ""
    # Two attributes of the token, copied for speed: the code reads them ten times for each token.
    text: str = field(init=False)
    is_symbol: bool = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.token.text
        self.is_symbol = self.token.kind is TokenKind.SYMBOL

    @property
    def has_comment(self) -> bool:
        return any(self.comments)  # a blank line does not count


@dataclass(slots=True)
class Line:
    """A line of the output. `text` is without indentation. Comments and blank lines leave `end_comment` empty."""

    column: int
    text: str
    end_comment: str = ""


def comment_lines(piece: Piece, column: int, *, blanks: bool) -> list[Line]:
    """Return the comments before a piece on lines of their own."""
    return [Line(column, text) for text in piece.comments if text or blanks]


def pieces(lexed: Lexed, text: str) -> list[Piece]:
    """Return all tokens, each with the comments and blank lines next to it, so that none is lost. The last is END."""
    pieces: list[Piece] = []
    comments = list(lexed.comments)
    position = 0  # of the next comment
    end = 0  # of the token or comment before
    for token in lexed.tokens:
        piece = Piece(token)
        own_comments: list[str] = []
        while position < len(comments) and comments[position].span.start < token.span.start:
            comment = comments[position]
            between = text[end : comment.span.start]
            if pieces and "\n" not in between and not own_comments and not pieces[-1].end_comment:
                pieces[-1].end_comment = comment.text.rstrip()  # it is on the line of the token before
            else:
                _keep_blank_line(own_comments, between)  # a blank line is kept as the comment ""
                own_comments.append(comment.text.rstrip())
            end = comment.span.end
            position += 1
        if token.first_on_line:
            _keep_blank_line(own_comments, text[end : token.span.start])
        piece.comments = tuple(own_comments)
        end = token.span.end
        if pieces and pieces[-1].text == "," and piece.text in ("]", ")"):  # a comma with nothing after it
            _drop_last_comma(pieces, piece)
        pieces.append(piece)
    return pieces


def _drop_last_comma(pieces: list[Piece], piece: Piece) -> None:
    """Leave out a comma before a closing bracket; its comments stay."""
    comma = pieces.pop()
    end_comment = comma.end_comment
    if end_comment and not pieces[-1].end_comment and not comma.has_comment:
        pieces[-1].end_comment = end_comment
        end_comment = ""
    moved = [_no_doc(end_comment)] if end_comment else []
    piece.comments = (*(c for c in comma.comments if c), *moved, *piece.comments)


def _keep_blank_line(comments: list[str], between: str) -> None:
    if between.count("\n") > 1 and comments[-1:] != [""]:
        comments.append("")


def without(group: Sequence[Piece], texts: tuple[str, ...]) -> list[Piece]:
    """Return the tokens without separators such as commas. The comments of a separator go to a token next to it."""
    remaining: list[Piece] = []
    carried: list[str] = []  # comments for the next piece
    for piece in group:
        if piece.is_symbol and piece.text in texts:
            carried += [c for c in piece.comments if c]
            if piece.end_comment and remaining and not remaining[-1].end_comment and not carried:
                remaining[-1].end_comment = piece.end_comment  # so it stays on its line
            elif piece.end_comment:  # it gets a line of its own, where `##` would mean documentation
                carried.append(_no_doc(piece.end_comment))
            continue
        if carried:
            piece = Piece(piece.token, (*carried, *piece.comments), piece.end_comment)  # noqa: PLW2901
            carried = []
        remaining.append(piece)
    if carried and remaining:  # no piece follows
        remaining[-1].end_comment = " ".join([c for c in (remaining[-1].end_comment,) if c] + carried)
    return remaining


def _no_doc(comment: str) -> str:
    """Return a trailing comment for a line of its own, where `##` would make it documentation."""
    return "# " + comment.lstrip("#").strip()


# ----------------------------------------------------------------------------------------------------- spacing


@dataclass(frozen=True, slots=True)
class _Gap:
    """The gap before a token: its space, how deep in brackets it is, and whether a line may begin here."""

    space: str
    depth: int
    rank: tuple[int, str] | None  # strength of the operator after it and kind of break; None: no line begins here


def joined(group: Sequence[Piece], style: Style = Style.EXPRESSION) -> str:
    """Return the pieces on one line, without their comments."""
    return "".join(gap.space + piece.text for gap, piece in zip(_gaps(group, style), group, strict=True))


def _gaps(group: Sequence[Piece], style: Style) -> list[_Gap]:
    """Find for each token the space before it, the depth of brackets, and how strongly it binds to the token before."""
    gaps: list[_Gap] = []
    open_brackets: list[str] = []  # "until" for the brackets of a condition within a structure
    open_betweens = 0  # each `between` still waits for its `and`
    has_structure = style is Style.STRUCTURE  # the steps of a pattern: `a -> b+ -> (c | d)`
    for position, piece in enumerate(group):
        left = group[position - 1] if position else None
        if piece.is_symbol and open_brackets and piece.text in _CLOSE:
            open_brackets.pop()
        in_structure = has_structure and "until" not in open_brackets
        around = open_brackets[-1] if open_brackets else ""  # the innermost open bracket
        if left is None:
            space = ""
        elif in_structure:
            space = _structure_space(left, piece, around)
            if piece.text == "within" and not around:
                is_of_group = any(_is(other, "->", "->>", ",", "|", "&") for other in group[position : position + 4])
                space = space if is_of_group else "  "  # no operator after `within 5 min`: it is the whole pattern's
        else:
            space = _expression_space(group[position - 2] if position > 1 else None, left, piece)
        rank = _break_rank(group, position, in_structure=in_structure)
        if rank is not None and piece.text == "and" and open_betweens:
            rank = _RANKS["between"]  # this `and` joins no conditions: it binds as strongly as its `between`
            open_betweens -= 1
        open_betweens += piece.text == "between"
        gaps.append(_Gap(space, len(open_brackets), rank if left is not None else None))  # None: no line begins here
        if piece.is_symbol and piece.text in _OPEN:
            is_until = left is not None and left.text == "until" and has_structure  # a condition, among steps
            open_brackets.append("until" if is_until or "until" in open_brackets else piece.text)
    return gaps


def _expression_space(before: Piece | None, left: Piece, right: Piece) -> str:
    one, other = left.text, right.text
    if right.is_symbol and other in _NO_SPACE_BEFORE:
        return ""
    if other == "(" and right.is_symbol and left.token.kind is TokenKind.NAME and one not in _BEFORE_A_VALUE:
        return ""
    if left.is_symbol and (one in _NO_SPACE_AFTER or (one == "-" and not _is_operand(before))):
        return ""
    return " "


def _structure_space(left: Piece, right: Piece, around: str) -> str:
    if around == "{" or _is(right, ",", ")", "]", "?", "*", "+", "{", "}", "["):
        return ""
    if _is(left, "(", "[", "!", "{"):
        return ""
    return " "


def _is(piece: Piece, *symbols: str) -> bool:
    return piece.is_symbol and piece.text in symbols


def _is_operand(piece: Piece | None) -> bool:
    """Return True if a value ends here, so that a `-` after it is not a sign."""
    if piece is None or (piece.is_symbol and piece.text not in (")", "]")):
        return False
    return piece.token.kind is not TokenKind.NAME or piece.text not in _BEFORE_A_VALUE


def _break_rank(group: Sequence[Piece], position: int, *, in_structure: bool) -> tuple[int, str] | None:
    """Return (strength, kind) of a break before a token; lines break at the least strength. None: never break."""
    if position == 0:
        return None
    left, piece = group[position - 1], group[position]
    if left.text == "," and left.is_symbol:
        return (1, "link") if in_structure else _COMMA  # in a `seq`, a comma or an arrow links two steps
    if in_structure:
        return _LINK_RANKS.get(piece.text)  # such as `->` or `within`
    if piece.text not in _RANKS and piece.text != "not":
        return None
    if piece.text == "not":  # a line may begin with `not in`, but not with the `not` of `not a`
        follows = group[position + 1].text if position + 1 < len(group) else ""
        return _RANKS["in"] if follows in ("in", "between", "like", "matches") and _is_operand(left) else None
    if piece.token.kind is TokenKind.STRING or left.text == "not" or not _is_operand(left):
        return None  # a text, the `in` of `not in`, or the sign of `-x`
    return _RANKS.get(piece.text)


# ------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True)
class Layout:
    """The column where wrapping begins, and the tokens that begin a line at this column; other lines are indented more.

    `prefix` is the existing text of the first line. Without `keep_breaks` only lines that are too long are broken.
    """

    column: int
    style: Style = Style.EXPRESSION
    aligned: str = "and"
    prefix: str = ""
    keep_breaks: bool = True


def wrap(group: Sequence[Piece], layout: Layout) -> list[Line]:
    """Break tokens into lines that fit the width, also at comments. The first line begins with `layout.prefix`."""
    if not group:  # then the prefix is the whole line
        return [Line(layout.column - len(layout.prefix), layout.prefix.rstrip())] if layout.prefix else []
    gaps = _gaps(group, layout.style)
    starts = [0]  # tokens that begin a line, however short it is
    for position in range(1, len(group)):
        may_break = gaps[position].rank is not None  # rank None: no line may begin at this token
        stays_broken = layout.keep_breaks and group[position].token.first_on_line and may_break  # as it was written
        if stays_broken or group[position].has_comment or group[position - 1].end_comment:
            starts.append(position)
    lines: list[Line] = []
    for begin, end in zip(starts, [*starts[1:], len(group)], strict=True):
        column = _column(gaps, begin, layout)
        if begin:  # the caller writes the comments before the first token
            lines += [Line(column, comment) for comment in group[begin].comments if comment]
        for first, last in _fitting(group, gaps, begin, end, layout):
            text = _text(group, gaps, first, last)
            lines.append(Line(_column(gaps, first, layout), text, group[last - 1].end_comment))
    lines[0] = Line(layout.column - len(layout.prefix), layout.prefix + lines[0].text, lines[0].end_comment)
    return lines


def _column(gaps: Sequence[_Gap], position: int, layout: Layout) -> int:
    """Return the column of a line that begins at a token: the layout's column for the first token and aligned ones."""
    gap = gaps[position]
    is_aligned = gap.depth == 0 and gap.rank is not None and gap.rank[1] == layout.aligned
    return layout.column if position == 0 or is_aligned else layout.column + INDENT_MORE


def _text(group: Sequence[Piece], gaps: Sequence[_Gap], first: int, last: int) -> str:
    return (group[first].text + "".join(gaps[i].space + group[i].text for i in range(first + 1, last))).rstrip()


def _fitting(
    group: Sequence[Piece], gaps: Sequence[_Gap], begin: int, end: int, layout: Layout
) -> list[tuple[int, int]]:
    """Divide tokens [begin, end) into parts that fit on a line where possible. Break at the weakest operators first.

    `gaps` has the space, the depth and the operator's strength before each token. Cost: linear for each strength.
    """
    widths = [0]  # widths[i] is the width of the first i tokens with the spaces before them
    for position in range(begin, end):
        widths.append(widths[-1] + len(gaps[position].space) + len(group[position].text))

    def width(first: int, last: int) -> int:
        inside = widths[last - begin] - widths[first - begin] - len(gaps[first].space)  # no space begins a line
        return _column(gaps, first, layout) + inside

    lines: list[tuple[int, int]] = []
    waiting = [(begin, end)]  # parts to be divided, the first one last
    while waiting:
        first, last = waiting.pop()
        strengths = {
            position: (gaps[position].depth, rank[0])  # rank: the operator's strength and the kind of break
            for position in range(first + 1, last)
            if (rank := gaps[position].rank) is not None
        }
        if width(first, last) <= WIDTH or not strengths:
            lines.append((first, last))
            continue
        weakest = min(strengths.values())  # the least depth in brackets; of one depth, the weakest operator
        cuts = [position for position, strength in strengths.items() if strength == weakest]
        parts: list[tuple[int, int]] = []
        start = first
        for cut, cut_after in zip(cuts, [*cuts[1:], last], strict=True):
            if width(start, cut_after) > WIDTH:  # then this cut is the last one that leaves a part which fits
                parts.append((start, cut))
                start = cut
        waiting += [(start, last), *reversed(parts)]  # the first part is the next to come out
    return lines
