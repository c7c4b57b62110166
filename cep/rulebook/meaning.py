"""The meaning of a version of a rule → a hash. Formatting, comments and the rest of the file do not change it.

The meaning is the tokens of the pattern and of every event type, list and definition that it names, in turn. To these
come the parameters and all else that decides the alerts. Entries of a list that may change do not count. The hash is on
every alert, and `rules.lock` ties a version to it.
Tested by: tests/rulebook/test_meaning.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

from cep.lang.diagnostics import Collector
from cep.lang.parse.lexer import Token, TokenKind, lex
from cep.model.rule import ParamValue, UpsertRecord

_NAMED = ("event", "list", "define", "pattern")
_STARTS = (*_NAMED, "test", "import")
_OPENING, _CLOSING = "([{", ")]}"
_DECIDING = ("pattern", "status", "severity", "priority", "score", "message")
_OPTIONAL = ("exclusive", "suppress")  # left out when unset, so that a hash outlives what cep learns to do
_TEXTS_KEPT = 4_096
_SOURCES_KEPT = 16  # the tokens of one text are a few hundred kB


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A declaration of a text: its place among the others, its tokens, and the names in them."""

    number: int
    spelled: tuple[str, ...]
    names: tuple[str, ...]


def content_hash(record: UpsertRecord) -> str:
    """SHA-256 of what decides the alerts of a version, whoever owns it, whenever it starts, however it is laid out.

    500 and 500.0 are one parameter. A text that has no such pattern counts as it is.
    """
    meaning = {name: getattr(record, name) for name in _DECIDING}
    meaning |= {name: value for name in _OPTIONAL if (value := getattr(record, name)) is not None}
    meaning["params"] = {name: _one_number(value) for name, value in record.params.items()}
    meaning["source"] = pattern_hash(record.source, record.pattern)
    text = json.dumps(meaning, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(_TEXTS_KEPT)
def pattern_hash(source: str, pattern: str) -> str:
    """SHA-256 of a pattern of this text and of what it names."""
    patterns, others = _declared(source)
    named = [given[pattern] for given in (patterns, others) if pattern in given]
    others = {**others, pattern: max(named, key=attrgetter("number"))} if named else others
    wanted, meanings = [pattern], dict[str, tuple[str, ...]]()
    while wanted:
        name = wanted.pop()
        if name in others and name not in meanings:
            meanings[name] = others[name].spelled
            wanted += others[name].names
    meaning = json.dumps(sorted(meanings.items())) if meanings else source
    return hashlib.sha256(meaning.encode()).hexdigest()


@lru_cache(_SOURCES_KEPT)
def _declared(source: str) -> tuple[dict[str, _Declaration], dict[str, _Declaration]]:
    """Return the patterns of a text and all else that has a name; of two with one name the last."""
    patterns: dict[str, _Declaration] = {}
    others: dict[str, _Declaration] = {}
    for number, (kind, name, tokens) in enumerate(_declarations(source)):
        names = tuple(token.text for token in tokens if token.kind is TokenKind.NAME)
        spelled = tuple(_spelled(token) for token in tokens)
        (patterns if kind == "pattern" else others)[name] = _Declaration(number, spelled, names)
    return patterns, others


def _declarations(source: str) -> Iterator[tuple[str, str, list[Token]]]:
    """Yield (kind, name, tokens) of each declaration that has a name, in the order of the text."""
    tokens = lex(source, "", Collector()).tokens
    depth, starts = 0, []
    for number, token in enumerate(tokens):
        if token.kind is TokenKind.SYMBOL:
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
        follows = tokens[number + 1].kind if number + 1 < len(tokens) else TokenKind.END
        if depth == 0 and token.text in _STARTS and follows in (TokenKind.NAME, TokenKind.STRING):
            starts.append(number)
    for start, end in pairwise([*starts, len(tokens)]):
        if tokens[start].text in _NAMED:
            yield tokens[start].text, tokens[start + 1].text, _without_last_commas(_meant(tokens[start:end]))


def _meant(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Leave out the entries of a list that may change: they have versions of their own."""
    if tokens[0].text != "list" or tokens[2].text != ":":
        return tokens
    ends = (number for number, token in enumerate(tokens) if token.text in ("=", "from") and number > 3)
    return tokens[: next(ends, len(tokens))]


def _without_last_commas(tokens: tuple[Token, ...]) -> list[Token]:
    """Leave out the commas that a list over several lines may end with."""
    following = [*(token.text for token in tokens[1:]), ""]
    return [
        token
        for token, after in zip(tokens, following, strict=True)
        if token.kind is not TokenKind.END and not (token.text == "," and after and after in _CLOSING)
    ]


def _spelled(token: Token) -> str:
    """Spell a number or a duration in one way, however it is written. A text differs from a name."""
    if token.kind in (TokenKind.INT, TokenKind.DURATION, TokenKind.STRING):
        return f"{token.kind} {token.value}"
    return token.text


def _one_number(value: ParamValue) -> ParamValue:
    if isinstance(value, list):
        return sorted(str(entry) for entry in value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
