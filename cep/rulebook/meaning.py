"""The meaning of a version of a rule → a hash, independent of formatting, comments and the rest of the file.

The meaning consists of the tokens of the pattern and of every event type, list and definition that it names,
recursively, with the parameters and everything else that decides the alerts. Entries of a list that may change do not
count. A pattern `over all` includes every event type that has its key, because its `until` may read their fields.
Tested by: tests/rulebook/test_files.py
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import dropwhile, pairwise, takewhile
from operator import attrgetter

from cep.lang.parse.lexer import DECLARATIONS, RESERVED, TokenKind, normal_tokens
from cep.model.rule import ParamValue, UpsertRecord

_NAMED_KINDS = ("event", "list", "define", "pattern")
_KINDS = (*_NAMED_KINDS, "test", "import")
_OVER_ALL = ("over", "all")
_CLOSING = (")", "]", "}")
_DEPTH_CHANGE = {**dict.fromkeys("([{", 1), **dict.fromkeys(_CLOSING, -1)}
_DECIDING = ("pattern", "status", "severity", "priority", "score", "message")
_OPTIONAL = ("exclusive", "suppress", "escalate")  # left out when unset, so that a hash survives new features
_TEXTS_CACHED = 4_096
_SOURCES_CACHED = 16  # the tokens of one text are a few hundred kB
_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True)
class _Declaration:
    """A declaration in a pattern file, to be hashed: its number in the file, its name, and its tokens as written."""

    number: int
    name: str
    tokens: list[str]

    @cached_property
    def text(self) -> str:
        """The name and the tokens as JSON, with a repetition `{3}` as `{3,3}`."""
        return json.dumps((self.name, _without_last_commas(_with_both_counts(self.tokens))))

    @cached_property
    def earlier_text(self) -> str:
        """The text as builds before 0.3 wrote it: a repetition `{3}` stays `{3}`, although `{3,3}` means the same."""
        return json.dumps((self.name, _without_last_commas(self.tokens)))


@dataclass(frozen=True, slots=True)
class _Names:
    """The patterns of a text, and its other named declarations, by name."""

    patterns: dict[str, _Declaration]
    others: dict[str, _Declaration]
    is_earlier: bool  # as builds up to 0.3.0 saw them: of two declarations with one name the last


def content_hash(record: UpsertRecord) -> str:
    """Return SHA-256 of everything that decides the alerts of a version. 500 and 500.0 are one parameter."""
    return _content_hash(record, pattern_hash(record.source, record.pattern))


def earlier_hash(record: UpsertRecord) -> str | None:
    """Return the hash that builds before 0.3 gave, where `{3}` and `{3,}` had the same one; None if it is unchanged."""
    digest, earlier = _hashes(record.source, record.pattern)
    return None if earlier == digest else _content_hash(record, earlier)


def pattern_hash(source: str, pattern: str) -> str:
    """Return SHA-256 of a pattern of this text and of everything that it names."""
    return _hashes(source, pattern)[0]


def _content_hash(record: UpsertRecord, source_hash: str) -> str:
    meaning = {name: getattr(record, name) for name in _DECIDING}
    meaning |= {name: value for name in _OPTIONAL if (value := getattr(record, name)) is not None}
    meaning["params"] = {name: _one_number(value) for name, value in record.params.items()}
    meaning["source"] = source_hash
    return hashlib.sha256(_canonical(meaning).encode()).hexdigest()


@lru_cache(_TEXTS_CACHED)
def _hashes(source: str, pattern: str) -> tuple[str, str]:
    """Hash a pattern and all declarations that it uses. Return the hash, and the hash of builds before 0.3."""
    names, earlier_names = _declared(source)
    parts = _parts(names, pattern)
    earlier_parts = parts if earlier_names is names else _parts(earlier_names, pattern)
    texts = [one.text for one in parts], [one.earlier_text for one in earlier_parts]  # only .text has `{3}` as `{3,3}`
    text, earlier_text = (f"[{', '.join(each)}]" if each else source for each in texts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest, digest if text == earlier_text else hashlib.sha256(earlier_text.encode()).hexdigest()


def _parts(names: _Names, pattern: str) -> list[_Declaration]:
    """Return the declarations that a pattern uses, itself among them, in the order of their names."""
    declared = names.others
    same_name = [declarations[pattern] for declarations in (names.patterns, declared) if pattern in declarations]
    if same_name:  # a pattern and another declaration may have one name
        last = max(same_name, key=attrgetter("number"))
        whole = replace(last, tokens=[token for one in same_name for token in one.tokens])
        declared = {**declared, pattern: last if names.is_earlier else whole}
    tokens = declared[pattern].tokens if same_name else ()
    is_over_all = "over" in tokens and _OVER_ALL in pairwise(tokens)  # it reads all event types with its key
    event_types = _event_types_with(_key(tokens), declared) if is_over_all else ()
    pending, used = [pattern, *event_types], dict[str, _Declaration]()
    while pending:  # the names whose declarations still have to be added
        name = pending.pop()
        if name in declared and name not in used:
            used[name] = declared[name]
            pending += [word for word in declared[name].tokens if word in declared and word.isidentifier()]
    return [used[name] for name in sorted(used)]


def _key(tokens: Iterable[str]) -> set[str]:
    behind = dropwhile(lambda word: word != "by", tokens)
    return {*takewhile(lambda word: word != "{", behind)} - {"by", *"(,)"}


def _event_types_with(key: set[str], declared: Mapping[str, _Declaration]) -> tuple[str, ...]:
    events = [one for one in declared.values() if ("event", one.name) in pairwise(one.tokens)]
    return tuple(event.name for event in events if key <= set(filter(str.isidentifier, event.tokens)))


@lru_cache(_SOURCES_CACHED)
def _declared(source: str) -> tuple[_Names, _Names]:
    """Return the named declarations of a text, and how builds up to 0.3.0 saw them: mostly the same object."""
    words = normal_tokens(source)
    names, earlier = _names(words, is_earlier=False), _names(words, is_earlier=True)
    is_same = (names.patterns, names.others) == (earlier.patterns, earlier.others)
    return names, names if is_same and names.patterns.keys().isdisjoint(names.others) else earlier


def _names(words: list[str], *, is_earlier: bool) -> _Names:
    names = _Names({}, {}, is_earlier)
    for number, tokens in enumerate(_named_declarations(words, is_earlier=is_earlier)):
        name, same_kind = tokens[1], names.patterns if tokens[0] == "pattern" else names.others
        parts = [tokens]
        if name in same_kind and not is_earlier:  # an event type, a list and a definition may have one name
            parts = sorted((same_kind[name].tokens, tokens))
        same_kind[name] = _Declaration(number, name, [token for part in parts for token in part])
    return names


def _named_declarations(words: list[str], *, is_earlier: bool) -> Iterator[list[str]]:
    """Yield each named declaration of a text as its tokens: independent of layout and comments, to be hashed."""
    depth, starts, name_index = 0, [], -1  # name_index: where the last declaration has its name; -1: nowhere
    for number, word in enumerate(words):
        depth_change = _DEPTH_CHANGE.get(word)  # of a bracket
        if depth_change is not None:
            depth += depth_change
        elif depth == 0 and word in _KINDS and number != name_index:
            name, after = (*words[number + 1 : number + 3], "")[:2]
            if _begins(word, name, after, is_earlier=is_earlier):
                starts.append(number)
                name_index = number + 1 if word in _NAMED_KINDS else -1  # a name may be spelled like a kind
    for start, end in pairwise([*starts, len(words) - 1]):  # the last word is the end of the text
        if words[start] in _NAMED_KINDS:
            yield _without_changeable_entries(words[start:end])


def _begins(word: str, name: str, after: str, *, is_earlier: bool) -> bool:
    """Return True if three words begin a declaration. In `event in [a, b]` or `not test and x`, a word is a field."""
    if is_earlier or word not in _NAMED_KINDS:
        return name.startswith(f"{TokenKind.STRING} ") or (is_earlier and name.isidentifier())
    return name.isidentifier() and name not in RESERVED and after in DECLARATIONS[word]


def _without_changeable_entries(words: list[str]) -> list[str]:
    """Leave out the entries of a list that may change: they have versions of their own."""
    if words[0] != "list" or words[2:3] != [":"]:
        return words
    ends = (number for number, word in enumerate(words) if word in ("=", "from") and number > 3)
    return words[: next(ends, len(words))]


def _without_last_commas(words: list[str]) -> list[str]:
    """Leave out the commas that a list over several lines may end with."""
    last = {index for index, (word, after) in enumerate(pairwise(words)) if word == "," and after in _CLOSING}
    return [word for index, word in enumerate(words) if index not in last] if last else words


def _with_both_counts(words: list[str]) -> list[str]:
    """Write `{3}` as `{3,3}`: without its last comma, `{3,}` would be the same."""
    if words.count("{") < 2:  # the first one begins the body
        return words
    counted: list[str] = []
    for number, word in enumerate(words):
        if word == "}" and words[number - 2] == "{":
            counted += [",", words[number - 1]]
        counted.append(word)
    return counted


def _one_number(value: ParamValue) -> ParamValue:
    if isinstance(value, list):
        return sorted(str(entry) for entry in value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
