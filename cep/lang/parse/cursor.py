"""A position in the tokens, with the common operations of the parser: look, take, expect, and give up cleanly.

Panic mode: `expect` reports and raises `Panic`, which the nearest loop over declarations, clauses or entries catches
and skips from. `Panic` never leaves the parser.
Tested by: tests/lang/test_parser.py
"""

from __future__ import annotations

from typing import NoReturn

from cep.base.limits import NESTING_MAX
from cep.lang.diagnostics import Collector, Span
from cep.lang.parse.lexer import Token, TokenKind
from cep.lang.syntax import Literal, NameRef

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
        """Return where the last taken token is."""
        return self.tokens[max(self.index - 1, 0)].span

    def take(self) -> Token:
        """Return the current token and move on."""
        token = self.token
        if token.kind is not _END:
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def go_back(self, index: int) -> None:
        """Return to a token that has been taken."""
        self.index = index
        self.token = self.tokens[index]

    def at(self, *texts: str) -> bool:
        """Return True if the current token is one of these symbols or words."""
        token = self.token
        return token.text in texts and token.kind in _WORDS

    def at_words(self, first: str, second: str) -> bool:
        """Return True if the next two tokens are these words."""
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
        """Take and return the current token, if it is one of these symbols or words."""
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
        """Take a name that is not reserved as a node, or report and give up."""
        token = self.name(noun)
        return NameRef(token.text, token.span)

    def name_refs(self, noun: str) -> tuple[NameRef, ...]:
        """Take names with commas between them, up to a closing parenthesis or where no comma follows."""
        names: list[NameRef] = []
        while not self.at(")"):
            names.append(self.name_ref(noun))
            if not self.accept(","):
                break
        return tuple(names)

    def string(self, noun: str, help_line: str = "") -> Literal:
        """Take a text in double quotes, or report and give up."""
        token = self.token
        if token.kind is not TokenKind.STRING:
            self.fail(f"expected {noun} in double quotes, found {self.shown()}", help_line)
        self.take()
        return Literal(str(token.value), token.span)

    def integer(self, noun: str) -> Token:
        """Take an integer, or report and give up."""
        if self.token.kind is not TokenKind.INT:
            self.fail(f"expected {noun}, found {self.shown()}")
        return self.take()

    def shown(self) -> str:
        """Return the current token for a message."""
        if self.at_end():
            return "the end of the file"
        return f"`{self.token.text[:40]}`"

    def fail(self, message: str, help_line: str = "", code: str = "CEP105") -> NoReturn:
        """Report at the current token and give up."""
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
        """Come back from one level."""
        self.depth -= 1
