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
    """The construct that tokens belong to. It decides on spaces and breaks."""

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
    """A token, the comment lines before it ("" is a blank line), and the comment after it."""

    token: Token
    lead: tuple[str, ...] = ()
    trail: str = ""
    # Copies of the token's attributes, because they are read ten times for each token.
    text: str = field(init=False)
    is_symbol: bool = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.token.text
        self.is_symbol = self.token.kind is TokenKind.SYMBOL

    @property
    def has_comment(self) -> bool:
        return any(self.lead)


@dataclass(slots=True)
class Line:
    """A line of the output. `text` is without indentation. Comments and blank lines leave `trail` empty."""

    column: int
    text: str
    trail: str = ""


def comment_lines(piece: Piece, column: int, *, blanks: bool) -> list[Line]:
    """Return the comments before a piece on lines of their own."""
    return [Line(column, text) for text in piece.lead if text or blanks]


def pieces(lexed: Lexed, text: str) -> list[Piece]:
    """Attach comments and blank lines to the tokens next to them. Return all tokens; the last one is END."""
    pieces: list[Piece] = []
    comments = list(lexed.comments)
    position = 0
    end = 0
    for token in lexed.tokens:
        piece = Piece(token)
        lead: list[str] = []
        while position < len(comments) and comments[position].span.start < token.span.start:
            comment = comments[position]
            between = text[end : comment.span.start]
            if pieces and "\n" not in between and not lead and not pieces[-1].trail:
                pieces[-1].trail = comment.text.rstrip()
            else:
                _blank(lead, between)
                lead.append(comment.text.rstrip())
            end = comment.span.end
            position += 1
        if token.first_on_line:
            _blank(lead, text[end : token.span.start])
        piece.lead = tuple(lead)
        end = token.span.end
        if pieces and pieces[-1].text == "," and piece.text in ("]", ")"):
            _absorb(pieces, piece)
        pieces.append(piece)
    return pieces


def _absorb(pieces: list[Piece], piece: Piece) -> None:
    """Leave out a comma before a closing bracket; its comments stay."""
    comma = pieces.pop()
    trail = comma.trail
    if trail and not pieces[-1].trail and not comma.has_comment:
        pieces[-1].trail = trail
        trail = ""
    piece.lead = (*(c for c in comma.lead if c), *((_no_doc(trail),) if trail else ()), *piece.lead)


def _blank(lead: list[str], between: str) -> None:
    if between.count("\n") > 1 and lead[-1:] != [""]:
        lead.append("")


def without(group: Sequence[Piece], texts: tuple[str, ...]) -> list[Piece]:
    """Remove separators such as commas from the pieces. Their comments go to the neighbours."""
    remaining: list[Piece] = []
    carried: list[str] = []
    for piece in group:
        if piece.is_symbol and piece.text in texts:
            carried += [c for c in piece.lead if c]
            if piece.trail and remaining and not remaining[-1].trail and not carried:
                remaining[-1].trail = piece.trail
            elif piece.trail:
                carried.append(_no_doc(piece.trail))
            continue
        if carried:
            piece = Piece(piece.token, (*carried, *piece.lead), piece.trail)  # noqa: PLW2901
            carried = []
        remaining.append(piece)
    if carried and remaining:
        remaining[-1].trail = " ".join([c for c in (remaining[-1].trail,) if c] + carried)
    return remaining


def _no_doc(comment: str) -> str:
    """Return a trailing comment for a line of its own, where `##` would make it documentation."""
    return "# " + comment.lstrip("#").strip()


# ----------------------------------------------------------------------------------------------------- spacing


@dataclass(frozen=True, slots=True)
class _Spot:
    """The place before a token: its space, how deep in brackets it is, and whether a line may begin here."""

    space: str
    depth: int
    rank: tuple[int, str] | None


def joined(group: Sequence[Piece], style: Style = Style.EXPRESSION) -> str:
    """Return the pieces on one line, without their comments."""
    return "".join(spot.space + piece.text for spot, piece in zip(_spots(group, style), group, strict=True))


def _spots(group: Sequence[Piece], style: Style) -> list[_Spot]:
    """Find for each token the space before it, the depth of brackets, and how strongly it binds to the token before."""
    spots: list[_Spot] = []
    open_brackets: list[str] = []
    open_betweens = 0  # each `between` still waits for its `and`
    has_structure = style is Style.STRUCTURE
    for position, piece in enumerate(group):
        left = group[position - 1] if position else None
        if piece.is_symbol and open_brackets and piece.text in _CLOSE:
            open_brackets.pop()
        in_structure = has_structure and "until" not in open_brackets
        around = open_brackets[-1] if open_brackets else ""
        if left is None:
            space = ""
        elif in_structure:
            space = _structure_space(left, piece, around)
            if piece.text == "within" and not around:
                is_of_group = any(_is(other, "->", "->>", ",", "|", "&") for other in group[position : position + 4])
                space = space if is_of_group else "  "
        else:
            space = _expression_space(group[position - 2] if position > 1 else None, left, piece)
        rank = _rank(group, position, in_structure=in_structure)
        if rank is not None and piece.text == "and" and open_betweens:
            rank = (3, "")
            open_betweens -= 1
        open_betweens += piece.text == "between"
        spots.append(_Spot(space, len(open_brackets), rank if left is not None else None))
        if piece.is_symbol and piece.text in _OPEN:
            is_until = left is not None and left.text == "until" and has_structure
            open_brackets.append("until" if is_until or "until" in open_brackets else piece.text)
    return spots


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


def _rank(group: Sequence[Piece], position: int, *, in_structure: bool) -> tuple[int, str] | None:
    """Return how strongly the token binds to the one before it, None if no line may begin with it."""
    if position == 0:
        return None
    left, piece = group[position - 1], group[position]
    if left.text == "," and left.is_symbol:
        return (1, "link") if in_structure else _COMMA
    if in_structure:
        return _LINK_RANKS.get(piece.text)
    if piece.text not in _RANKS and piece.text != "not":
        return None
    if piece.text == "not":
        follows = group[position + 1].text if position + 1 < len(group) else ""
        return _RANKS["in"] if follows in ("in", "between", "like", "matches") and _is_operand(left) else None
    if piece.token.kind is TokenKind.STRING or left.text == "not" or not _is_operand(left):
        return None
    return _RANKS.get(piece.text)


# ------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True)
class Layout:
    """The column where a flow begins, and the tokens that begin a line at this column; other lines are indented more.

    `taken` is the existing text of the first line. Without `keep_breaks` only lines that are too long are broken.
    """

    column: int
    style: Style = Style.EXPRESSION
    aligned: str = "and"
    taken: str = ""
    keep_breaks: bool = True


def flow(group: Sequence[Piece], layout: Layout) -> list[Line]:
    """Break pieces into lines that fit the width. `taken` is text before the first piece, which begins at `column`."""
    if not group:
        return [Line(layout.column - len(layout.taken), layout.taken.rstrip())] if layout.taken else []
    spots = _spots(group, layout.style)
    starts = [0]
    for position in range(1, len(group)):
        rank = spots[position].rank
        stays_broken = layout.keep_breaks and group[position].token.first_on_line and rank is not None
        if stays_broken or group[position].has_comment or group[position - 1].trail:
            starts.append(position)
    lines: list[Line] = []
    for begin, end in zip(starts, [*starts[1:], len(group)], strict=True):
        column = _column(spots, begin, layout)
        if begin:
            lines += [Line(column, comment) for comment in group[begin].lead if comment]
        for first, last in _fitting(group, spots, begin, end, layout):
            text = _text(group, spots, first, last)
            lines.append(Line(_column(spots, first, layout), text, group[last - 1].trail))
    lines[0] = Line(layout.column - len(layout.taken), layout.taken + lines[0].text, lines[0].trail)
    return lines


def _column(spots: Sequence[_Spot], position: int, layout: Layout) -> int:
    spot = spots[position]
    is_aligned = spot.depth == 0 and spot.rank is not None and spot.rank[1] == layout.aligned
    return layout.column if position == 0 or is_aligned else layout.column + INDENT_MORE


def _text(group: Sequence[Piece], spots: Sequence[_Spot], first: int, last: int) -> str:
    return (group[first].text + "".join(spots[i].space + group[i].text for i in range(first + 1, last))).rstrip()


def _fitting(
    group: Sequence[Piece], spots: Sequence[_Spot], begin: int, end: int, layout: Layout
) -> list[tuple[int, int]]:
    """Divide [begin, end) into parts that fit on a line where possible. Break at the weakest operators first.

    Cost: linear for each strength of operator, and nesting limits the number of strengths.
    """
    widths = [0]
    for position in range(begin, end):
        widths.append(widths[-1] + len(spots[position].space) + len(group[position].text))

    def width(first: int, last: int) -> int:
        inside = widths[last - begin] - widths[first - begin] - len(spots[first].space)
        return _column(spots, first, layout) + inside

    breaks: list[tuple[int, int]] = []
    waiting = [(begin, end)]
    while waiting:
        first, last = waiting.pop()
        strengths = {
            position: (spots[position].depth, rank[0])
            for position in range(first + 1, last)
            if (rank := spots[position].rank) is not None
        }
        if width(first, last) <= WIDTH or not strengths:
            breaks.append((first, last))
            continue
        weakest = min(strengths.values())
        cuts = [position for position, strength in strengths.items() if strength == weakest]
        parts: list[tuple[int, int]] = []
        start = first
        for cut, boundary in zip(cuts, [*cuts[1:], last], strict=True):
            if width(start, boundary) > WIDTH:
                parts.append((start, cut))
                start = cut
        waiting += [(start, last), *reversed(parts)]
    return breaks
