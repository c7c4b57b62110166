"""Text to tokens, and a cursor over them for the parser: look, take, expect, and give up cleanly.

Comments are stored separately, doc comments on the token that follows them. The lexer does not know declarations. It
never fails: unreadable parts are reported and left out.

Panic mode: `Cursor.expect` reports and raises `Panic`, which the nearest loop over declarations, clauses or entries
catches and skips from. `Panic` never leaves the parser.
Tested by: tests/lang/test_parser.py
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from string import ascii_letters
from typing import NoReturn, TypeVar

from cep.base.limits import NESTING_MAX, TIME_MS_MAX
from cep.base.text import HIDDEN
from cep.lang.diagnostics import Collector, Fix, Span, did_you_mean
from cep.lang.syntax import Literal, NameRef

T = TypeVar("T")


class TokenKind(StrEnum):
    """The kind of a token."""

    NAME = "name"
    INT = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DURATION = "duration"
    STRING = "text"
    SYMBOL = "symbol"
    END = "end of file"


NUMBERS = (TokenKind.INT, TokenKind.DECIMAL, TokenKind.DURATION)  # that a number or a duration may begin with


@dataclass(slots=True)  # not frozen: a file has a hundred thousand of them, and freezing doubles the cost of one
class Token:
    """`value` is the content: int for INT, Decimal for DECIMAL, float for FLOAT, ms for DURATION, otherwise str."""

    kind: TokenKind
    text: str
    span: Span
    value: int | float | str | Decimal
    line: int
    first_on_line: bool
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, kept so that a formatter can put it back."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Lexed:
    """The tokens of a text, the last one END, and its comments."""

    tokens: tuple[Token, ...]
    comments: tuple[Comment, ...]


UNITS_MS = {
    "ms": 1,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}

_DIGITS_MAX = 40  # more than any 64-bit value has; far beyond, Python itself refuses to convert (a guard of its own)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}

# Joiners, soft hyphens and variants of a letter or a picture.
_SHAPING = frozenset("\u200c\u200d\xad\u034f" + "".join(map(chr, range(0xFE00, 0xFE10))))

_SPACE = r"[ \t\r\f\v\ufeff]+"
_COMMENT = r"\#[^\n]*"
_VISIBLE = r"""[A-Za-z_][A-Za-z0-9_]*
      | [0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9]+)?(?:[A-Za-z_][A-Za-z0-9_]*)?
      | "(?:[^"\\\n]|\\[^\n])*"
      | '[^'\n]*'
      | ["'][^\n]*
      | ->>|->|\.\.|==|!=|<>|<=|>=|&&|\|\||[-+*/%<>=!?,.:;(){}\[\]|&]
      | [^\n \t\r\f\v\ufeff\#A-Za-z_0-9"'\-+*/%<>=!?,.:;(){}\[\]|&]+
"""
# The pieces of a text, in order and without gaps. The first character decides the kind of a piece.
_PIECES = re.compile(rf"\n | {_SPACE} | {_COMMENT} | {_VISIBLE}", re.VERBOSE)
# The tokens alone, each with any blanks and comments before it; "" for the end. `*+` never backtracks.
_TOKENS = re.compile(rf"(?: \n | {_SPACE} | {_COMMENT} )*+ ({_VISIBLE} | \Z)", re.VERBOSE)
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9]+)?)(.*)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SPACES = frozenset(" \t\r\f\v\ufeff")
_VALUED = (TokenKind.INT, TokenKind.DURATION, TokenKind.STRING)
_PLAIN_KINDS = {  # the kind of a token by its first character, if its value is its text
    **dict.fromkeys(f"{ascii_letters}_", TokenKind.NAME),
    **dict.fromkeys("-+*/%<>=!?,.:;(){}[]|&", TokenKind.SYMBOL),
}


class _Lexer:
    def __init__(self, text: str, file: str, collector: Collector) -> None:
        self.text = text
        self.file = file
        self.collector = collector
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.line = 1
        self.first_on_line = True
        self.pending_doc: list[str] = []

    def run(self) -> Lexed:
        """Divide the text into tokens and comments. Report characters that cannot be seen."""
        self._refuse_hidden()
        end = 0
        for text in _PIECES.findall(self.text):
            start, end = end, end + len(text)
            first = text[0]
            if first in _SPACES:
                continue
            if first == "\n":
                self.line += 1
                self.first_on_line = True
                continue
            span = Span(self.file, start, end)
            kind = _PLAIN_KINDS.get(first)  # None unless the piece is a name or a symbol
            if kind is None or self.pending_doc:  # `pending_doc` is the documentation of the next token
                self.convert(text, span)
                continue
            self.tokens.append(Token(kind, text, span, text, self.line, self.first_on_line))  # the text is its value
            self.first_on_line = False
        self._push(TokenKind.END, "", Span(self.file, end, end), "")
        return Lexed(tuple(self.tokens), tuple(self.comments))

    def _refuse_hidden(self) -> None:
        """Report characters that cannot be seen. In a comment, characters that only shape their neighbours are fine."""
        end = 0
        for piece in _PIECES.findall(self.text) if HIDDEN.search(self.text) else ():  # most texts have none
            start, end = end, end + len(piece)
            for match in HIDDEN.finditer(piece):
                place = start + match.start()
                is_byte_order_mark = place == 0 and match[0] == "\ufeff"
                is_harmless = match[0] in _SHAPING and piece[0] == "#"  # such as a joiner in a comment
                if not (is_byte_order_mark or is_harmless or self.text.startswith("\r\n", place)):  # a line end
                    name = unicodedata.name(match[0], "a control character")
                    message = f"U+{ord(match[0]):04X} {name} cannot be seen, so the text is not what it looks like"
                    span = Span(self.file, place, place + 1)
                    self.collector.add("CEP101", message, span, "remove the character", fix=Fix(span, ""))

    def convert(self, text: str, span: Span) -> None:
        """Convert a piece of text to a token or a comment. The piece is not a space or a line end."""
        first = text[0]
        if first in _PLAIN_KINDS:
            self._push(_PLAIN_KINDS[first], text, span, text)
        elif first == "#":
            self.comments.append(Comment(text, span))
            if text.startswith("##") and self.first_on_line:  # documentation of the next token
                self.pending_doc.append(text[2:].strip())
        elif first in "0123456789":
            self._number(text, span)
        elif first in "\"'":
            self._string(text, span)
        elif HIDDEN.search(text) is None:  # `_refuse_hidden` reports the others, which cannot be seen
            self.collector.add("CEP101", f"`{text[:20]}` is not a character of the language", span)

    def _push(self, kind: TokenKind, text: str, span: Span, value: float | str | Decimal) -> None:
        doc = ""
        if self.pending_doc:
            doc = "\n".join(self.pending_doc)
            self.pending_doc.clear()
        self.tokens.append(Token(kind, text, span, value, self.line, self.first_on_line, doc))
        self.first_on_line = False

    def _string(self, text: str, span: Span) -> None:
        if _STRING.fullmatch(text):
            self._push(TokenKind.STRING, text, span, self._unescape(text, span))
        elif text[0] == "'" and text.find("'", 1) > 0:
            fix = Fix(span, f'"{text[1:-1]}"') if '"' not in text else None
            self.collector.add("CEP102", "write text in double quotes", span, f'write "{text[1:-1]}"', fix=fix)
            self._push(TokenKind.STRING, text, span, text[1:-1])
        else:
            self.collector.add("CEP102", "this text has no closing quote on its line", span)
            self._push(TokenKind.STRING, text, span, text[1:])

    def _unescape(self, text: str, span: Span) -> str:
        def replace(escape: re.Match[str]) -> str:
            letter = escape.group(1)
            if letter not in _ESCAPES:
                self.collector.add(
                    "CEP102", f"`\\{letter}` is not an escape", span, 'the escapes are \\" \\\\ \\n and \\t'
                )
            return _ESCAPES.get(letter, letter)

        return re.sub(r"\\(.)", replace, text[1:-1])

    def _number(self, written: str, span: Span) -> None:
        match = _NUMBER.fullmatch(written)  # [1] is the number, [2] its suffix, such as the `m` of `5m`
        assert match is not None, "it begins with a digit"
        text, suffix = match[1].replace("_", ""), match[2]
        if len(text) > _DIGITS_MAX:
            self.collector.add("CEP103", "this number is too long", span, "numbers have 64 bits")
            text = "1"  # any number does, because the mistake is reported
        is_float = "e" in text.lower()
        if suffix[:1].isupper() and not is_float:  # such as `3DS`: units of time are in small letters
            fix = Fix(span, f'"{written}"')
            help_line = f'a text or a symbol that begins with a digit stands in quotes: "{written}"'
            self.collector.add("CEP103", f"`{written}` is not a number", span, help_line, fix=fix)
            self._push(TokenKind.STRING, written, span, written)
            return
        if suffix and not is_float:
            self._push(TokenKind.DURATION, written, span, self._duration(Decimal(text), suffix, span))
            return
        if suffix:  # such as `1e5m`
            self.collector.add("CEP103", f"`{written}` is not a number", span)
        if is_float:
            number = float(text)
            if not math.isfinite(number):
                self.collector.add("CEP103", "this number is too large", span, "numbers have 64 bits")
                number = 0.0
            self._push(TokenKind.FLOAT, written, span, number)
        elif "." in text:
            self._push(TokenKind.DECIMAL, written, span, Decimal(text))
        else:
            value = int(text)
            if value >= 2**63:
                self.collector.add("CEP103", "this number is too large", span, "integers have 64 bits")
                value = 1
            self._push(TokenKind.INT, written, span, value)

    def _duration(self, number: Decimal, unit: str, span: Span) -> int:
        if unit not in UNITS_MS:
            help_line = did_you_mean(unit, UNITS_MS, "units")
            self.collector.add("CEP104", f"`{unit}` is not a unit of time", span, help_line)
            return 1
        return duration_ms(number, unit, span, self.collector)


def normal_tokens(text: str) -> list[str]:
    """Divide a text into the same tokens as `lex`, each in one normal spelling, to be hashed. Report nothing.

    This takes a third of the time of `lex`. A whole number, a duration or a text begins with its kind, so that the text
    "a" differs from the name a. Another number stays as written. The last token is "".
    """
    lexer, nowhere = _Lexer(text, "", Collector()), Span("", 0, 0)
    words: list[str] = []
    for piece in _TOKENS.findall(text):
        if piece and piece[0] in _PLAIN_KINDS:  # a name or symbol, which has one spelling
            words.append(piece)
        elif piece:  # the last piece, "", is the end of the text
            lexer.convert(piece, nowhere)
            words += [f"{t.kind} {t.value}" if t.kind in _VALUED else t.text for t in lexer.tokens]
            lexer.tokens.clear()
    return [*words, ""]


def without_comments(text: str) -> str:
    """Return the text without its comments."""
    return "".join(piece for piece in _PIECES.findall(text) if piece[0] != "#")


def duration_ms(number: Decimal, unit: str, span: Span, collector: Collector) -> int:
    """Return `number` units of time in milliseconds, or 1 after a report: not a whole number, or too long."""
    scaled = number * UNITS_MS[unit]
    if scaled != scaled.to_integral_value():
        collector.add("CEP104", "a duration is a whole number of milliseconds", span)
        return 1
    if scaled >= TIME_MS_MAX:
        collector.add("CEP104", "this duration is too long", span)
        return 1
    return int(scaled)


def lex(text: str, file: str, collector: Collector) -> Lexed:
    """Split a text into tokens. Reports characters, numbers and texts that cannot be read."""
    return _Lexer(text, file, collector).run()


# Words that can name nothing, because an expression or a clause ends or changes where they stand.
RESERVED = frozenset(
    "and or not in between is like null true false if then else seq where skip emit produce within by".split()  # noqa: SIM905
)
CLAUSE_WORDS = ("seq", "where", "skip", "emit", "produce")  # reserved; `over all` and `on timeout emit` are not
# The help of a message about the n-th event of a loop.
NTH_EVENT = "write `first(x).f`, `x.f` for the last one, `prev(x).f`; or name the events apart: `x1 -> x2 -> x*`"
# The word of each declaration, and the tokens that may follow its name: this recognises a declaration after a mistake.
DECLARATIONS = {
    "event": ("{",),
    "import": (),
    "list": ("=", ":"),
    "define": ("(", "="),
    "pattern": ("(", "by", "{"),
    "test": (),
}


# A look-up in an enum costs as much as the rest of a question to the cursor.
_END, _WORDS = TokenKind.END, (TokenKind.SYMBOL, TokenKind.NAME)


class Panic(Exception):  # noqa: N818 - control flow inside the parser, not an error that anyone sees
    """The mistake is reported; skip to where the text makes sense again."""


class Cursor:
    """Reads tokens one by one; the last one is END and is never passed. `token` is the one at `index`."""

    def __init__(self, tokens: tuple[Token, ...], collector: Collector) -> None:
        self.tokens = tokens
        self.collector = collector
        self.index = 0
        self.token = tokens[0]
        self.depth = 0

    def ahead(self, count: int = 1) -> Token:
        """Return the token `count` places on."""
        return self.tokens[min(self.index + count, len(self.tokens) - 1)]

    @property
    def previous_span(self) -> Span:
        return self.tokens[max(self.index - 1, 0)].span

    def take(self) -> Token:
        token = self.token
        if token.kind is not _END:
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def go_back(self, index: int) -> None:
        self.index = index
        self.token = self.tokens[index]

    def at(self, *texts: str) -> bool:
        """Return True if the current token is one of these symbols or words."""
        token = self.token
        return token.text in texts and token.kind in _WORDS

    def at_words(self, first: str, second: str) -> bool:
        return self.at(first) and self.ahead().text == second and self.ahead().kind is TokenKind.NAME

    def at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    def at_declaration(self) -> bool:
        """Return True if a declaration begins here. Its words are not reserved: a field may be called `list`."""
        token, name, after = self.token, self.ahead(), self.ahead(2)
        if not token.first_on_line or token.kind is not TokenKind.NAME:
            return False
        if token.text == "import":
            return name.kind is TokenKind.STRING
        if token.text == "test":
            return name.kind is TokenKind.STRING and after.text == "of"
        return name.kind is TokenKind.NAME and after.text in DECLARATIONS.get(token.text, ())

    def at_closing_brace(self) -> bool:
        """Return True for the brace that closes a declaration, and not one inside of it."""
        after = self.ahead()
        ends = after.kind is TokenKind.END or (after.first_on_line and after.text in DECLARATIONS)
        return self.at("}") and (self.token.first_on_line or ends)

    def accept(self, *texts: str) -> Token | None:
        return self.take() if self.at(*texts) else None

    def expect(self, text: str, suffix: str = "") -> Token:
        """Take this symbol or word, or report and give up."""
        if not self.at(text):
            self.fail(f"expected `{text}`{' ' + suffix if suffix else ''}, found {self.shown()}")
        return self.take()

    def name(self, noun: str, help_line: str = "") -> Token:
        """Take a name that is not reserved, or report and give up; `help_line` is for a reserved word."""
        token = self.token
        if token.kind is not TokenKind.NAME:
            self.fail(f"expected {noun}, found {self.shown()}")
        if token.text in RESERVED:
            self.fail(f"expected {noun}, but `{token.text}` is a reserved word", help_line)
        return self.take()

    def name_ref(self, noun: str) -> NameRef:
        token = self.name(noun)
        return NameRef(token.text, token.span)

    def separated(self, end: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Parse items with commas between them, up to the symbol `end` or where no comma follows."""
        items: list[T] = []
        while not self.at(end):
            items.append(item())
            if not self.accept(","):
                break
        return tuple(items)

    def name_refs(self, noun: str) -> tuple[NameRef, ...]:
        return self.separated(")", lambda: self.name_ref(noun))

    def string(self, noun: str, help_line: str = "") -> Literal:
        token = self.token
        if token.kind is not TokenKind.STRING:
            self.fail(f"expected {noun} in double quotes, found {self.shown()}", help_line)
        self.take()
        return Literal(str(token.value), token.span)

    def integer(self, noun: str) -> int:
        if self.token.kind is not TokenKind.INT:
            self.fail(f"expected {noun}, found {self.shown()}")
        value = self.take().value
        assert isinstance(value, int)
        return value

    def shown(self) -> str:
        if self.at_end():
            return "the end of the file"
        return f"`{self.token.text[:40]}`"

    def fail(self, message: str, help_line: str = "", code: str = "CEP105") -> NoReturn:
        self.collector.add(code, message, self.token.span, help_line)
        raise Panic

    def nested(self) -> Cursor:
        """Go one level deeper, until the `with` ends. Give up past the limit, because the parser recurses."""
        if self.depth >= NESTING_MAX:
            self.fail(f"nested more than {NESTING_MAX} levels deep", "split it with `define`", code="CEP108")
        self.depth += 1
        return self

    def __enter__(self) -> None:
        """Begin the `with` of `nested`."""

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
