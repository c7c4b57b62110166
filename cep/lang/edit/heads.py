"""A text → where its declarations begin, without a parse; and the text with only what matters at one place.

An editor asks for one place after each key. A file of hundreds of patterns is too large to be checked as often, and the
answer depends only on a few declarations: the one at that place, the patterns that it names, patterns that produce
events, and everything that is neither a pattern nor a test. The others become blanks, so offsets and lines stay.
Tested by: tests/lang/test_editor.py
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_HEAD = re.compile(
    r"""^(?:[#][^\n]*\n)*(?P<word>pattern|test|event|list|define|import)\b[ \t]*
        (?P<name>"(?:[^"\\\n]|\\.)*"|[A-Za-z_][A-Za-z0-9_]*)?(?:[ \t]+of[ \t]+(?P<of>[A-Za-z_][A-Za-z0-9_]*))?""",
    re.MULTILINE | re.VERBOSE,
)
_NOT_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*')
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t"}
_LINE = re.compile(r"[^\r\n]+")
_SMALL = 8_000  # characters; a text of this size is checked as a whole in a few milliseconds


@dataclass(frozen=True, slots=True)
class Head:
    """A declaration that begins a line: its first word, its name, and the pattern that a test tests.

    Offsets: `start` of the comment lines before it, `end` of the declaration, `name_start` and `name_end`.
    """

    word: str
    name: str
    tested: str
    start: int
    end: int
    name_start: int
    name_end: int


@lru_cache(4)  # of the texts in which somebody types
def heads(text: str) -> Sequence[Head]:
    """Return the declarations of a text in their order. Those that do not begin a line are left out."""
    matches = list(_HEAD.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    return tuple(
        Head(match["word"], _unquoted(match["name"] or ""), match["of"] or "", match.start(), end, *match.span("name"))
        for match, end in zip(matches, ends, strict=False)  # a text without declarations has one end
    )


def import_at(text: str, offset: int) -> Head | None:
    """Return the import whose quotes contain the offset."""
    imports = (head for head in heads(text) if head.word == "import" and head.name)
    return next((head for head in imports if head.name_start <= offset <= head.name_end), None)


def focused(text: str, offset: int) -> str:
    """Return the text with blanks in place of the patterns and tests that the declaration at the offset cannot use.

    Returns: the text itself if it is small, or if the declaration at the offset has an open brace.
    """
    if len(text) <= _SMALL:
        return text
    declared = heads(text)
    here = next((head for head in declared if head.start <= offset < head.end or head.end == len(text)), None)
    if here is None:
        return text
    code = _NOT_CODE.sub("", text[here.start : here.end])
    if code.count("{") != code.count("}"):  # a word in it may begin a line and look like a declaration
        return text
    words = set(_WORD.findall(code))
    parts, position = [], 0
    for head in declared:
        whole = text[head.start : head.end]
        if head is not here and (head.word == "test" or (head.word == "pattern" and not _is_named(head, whole, words))):
            parts += [text[position : head.start], _LINE.sub(_blanks, whole)]
            position = head.end
    return "".join([*parts, text[position:]])


def _is_named(head: Head, whole: str, words: set[str]) -> bool:
    """Return True for a pattern that is named, or that produces events, which other declarations may name."""
    return head.name in words or "produce" in _WORD.findall(whole)


def _blanks(line: re.Match[str]) -> str:
    return " " * (line.end() - line.start())


def _unquoted(name: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), name[1:-1]) if name.startswith('"') else name
