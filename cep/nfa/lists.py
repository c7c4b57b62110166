"""Declared lists of checked files → their content, and problems with their entries.

    list blocked: string from "blocked.csv"     a file, relative to the file that names it
    list bins: prefix = ["411111", "55"]        entries in place
    list watch: string                          empty: the control topic fills it

Lists without a type are constants of their patterns. Lists of the control topic replace declared ones.

A field of type `pan` or `sensitive` is a token in a rule. So entries of its lists (`token_lists`) that are not tokens
are refused: a card number would match nothing, and would stay in a file, in the topic, in the state and in letters.
Tested by: tests/nfa/test_compile.py, tests/lang/golden/diagnostics/, tests/rulebook/test_suppression.py
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import SourceError
from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Kind, list_kind
from cep.base.secrets import TOKENS_MATCH
from cep.lang.check.resolve import list_value
from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.functions import IN_LIST
from cep.lang.ir import Call, Const, Param, PatternIR
from cep.lang.load import Checked
from cep.lang.syntax import ListSyntax
from cep.lang.walk import nodes_of
from cep.lists.entries import TEXT, Keys, WrongEntry, keys_of, read_entries
from cep.lists.store import Content, FixedVersion, Lists

_TEXTS = ("string", "prefix")  # kinds of lists in which texts are looked up; other fields are never protected


def token_lists(pattern: PatternIR) -> set[tuple[str, str]]:
    """Return (name, kind) of each list in which a pattern looks up a protected field, such as a card token.

    The name of a list that is written in place is the JSON of its entries. A parameter without a value has its default.
    """
    defaults = {param.name: param.default for param in pattern.params}
    calls = (call for call in nodes_of(pattern, Call) if call.fn == IN_LIST)
    lists = set()
    for looked_up, list_argument in (call.arguments[:2] for call in calls):
        name = (
            list_argument.value
            if isinstance(list_argument, Const)
            else defaults.get(list_argument.name)
            if isinstance(list_argument, Param)
            else None
        )
        if looked_up.type.protected and isinstance(name, str):
            lists.add((name, list_kind(list_argument.type)))
    return lists


def raw_count(entries: pa.Array) -> int:
    """Count the entries, large_string, that are not tokens."""
    is_token = pc.match_substring_regex(entries, f"^(?:{TOKENS_MATCH})$")
    return len(entries) - (pc.sum(is_token).as_py() or 0)


def raw_keys(keys: Keys, kind: str) -> int:
    """Count the keys of a set that are not tokens."""
    if kind not in _TEXTS:
        return 0
    offsets = np.ascontiguousarray(keys.offsets, np.int64)
    data = np.ascontiguousarray(keys.data)
    return raw_count(pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(data)))


_HELP = {
    "CEP320": "give tokens, as alerts show them; never write the value itself into a list",
    "CEP801": "write the path from this file's folder; a text file has an entry a line, a .csv file a header",
    "CEP802": "write what the list is declared to be of",
    "CEP803": "leave the entry out",
    "CEP804": "remove the repeated entries",
}


@dataclass(frozen=True, slots=True)
class GivenList:
    """A list with its entries as they are written. `repeated_count` of them repeat an earlier entry."""

    name: str
    kind: str
    entries: pa.Array
    content: Content
    repeated_count: int


@dataclass(slots=True)
class GivenLists:
    """The lists of files by name and kind, and the problems of the other lists."""

    lists: dict[tuple[str, str], GivenList] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def timelines(self) -> Lists:
        """Return the lists for a program: their content has always been the same."""
        return {key: (FixedVersion(TIME_MS_MIN, given_list.content),) for key, given_list in self.lists.items()}


def given_lists(checked: Checked) -> GivenLists:
    """Return the lists that are declared with entries. Cost: reads their files."""
    collected = GivenLists()
    types = checked.resolved.list_types()
    tokens = set().union(*map(token_lists, checked.patterns.values()))
    for declared in checked.resolved.lists.values():
        if declared.name in types and (declared.items or declared.file is not None):
            kind = list_kind(types[declared.name])
            _add_list(collected, declared, kind, checked.roots, has_tokens=(declared.name, kind) in tokens)
    return collected


def asked_lists(patterns: Iterable[PatternIR]) -> set[tuple[str, str]]:
    """Return (name, kind) of each list that bound patterns use, without lists that are written in place."""
    lists = (node for pattern in patterns for node in nodes_of(pattern, Const))
    named = {(str(node.value), list_kind(node.type)) for node in lists if node.type.kind is Kind.LIST}
    return {(name, kind) for name, kind in named if not name.startswith("[")}


def in_place_problems(pattern: PatternIR) -> list[str]:
    """Check the lists that a rule writes in place, such as `in ["a", "b"]`. Return a line for each mistake."""
    lists = (node for node in nodes_of(pattern, Const) if node.type.kind is Kind.LIST)
    wrong: list[WrongEntry] = []
    for node in lists:
        name = str(node.value)
        if name.startswith("["):  # the name of a list in place is the JSON of its entries
            wrong += keys_of(json.loads(name), list_kind(node.type))[1]
    # A protected field holds tokens (pseudonyms) in place of its values, so its lists must have tokens, too.
    protected = (name for name, _ in token_lists(pattern) if name.startswith("["))
    raw_entries = sum(raw_count(pa.array(json.loads(name), TEXT)) for name in protected)
    if raw_entries:  # reported alone, because messages about wrong entries quote them
        mistake = f"{raw_entries} entries of a list are no tokens, and it is looked up in with a token"
        return [f"CEP320 {mistake}; {_HELP['CEP320']}"]
    return [f"{entry.code} {entry.message}" for entry in wrong]


def _add_list(
    collected: GivenLists, declared: ListSyntax, kind: str, roots: Mapping[str, Path], *, has_tokens: bool
) -> None:
    """Read one declared list, and add its content or its diagnostics to `collected`. `kind`: the type of its entries.

    `has_tokens`: it is for a field whose values are tokens (pseudonyms); then raw entries, which are not tokens, are
    mistakes. `roots` are the folders of pattern files, which also contain the files of lists."""
    span = declared.span if declared.file is None else declared.file.span
    try:
        entries = _entries(declared, roots.get(declared.span.file))
    except SourceError as error:
        collected.diagnostics.append(Diagnostic("CEP801", str(error), span, (), _HELP["CEP801"]))
        return
    raw_entries = raw_count(entries) if has_tokens else 0
    if raw_entries:  # the message quotes no entry
        message = (
            f"{raw_entries} of the entries of `{declared.name}` are no tokens, and a pattern looks tokens up in it"
        )
        place = declared.items[0].span.to(declared.items[-1].span) if declared.items else span
        collected.diagnostics.append(Diagnostic("CEP320", message, place, (), _HELP["CEP320"]))
        return
    keys, wrong = keys_of(entries, kind)
    for entry in wrong:
        place = declared.items[entry.number].span if declared.items else span
        collected.diagnostics.append(Diagnostic(entry.code, entry.message, place, (), _HELP[entry.code]))
    content = Content(kind).changed("replace", keys)  # an empty list, with its entries replaced by these
    repeated_count = len(keys) - len(content)
    if repeated_count and declared.file is None:  # an export of another system may repeat entries; they are counted
        collected.diagnostics.append(_repeated(declared.name, repeated_count, span))
    if not wrong:
        collected.lists[declared.name, kind] = GivenList(declared.name, kind, entries, content, repeated_count)


def _entries(declared: ListSyntax, root: Path | None) -> pa.Array:
    if declared.file is not None:
        if root is None:
            raise SourceError(f"{declared.file.value} cannot be read as a list: only a pattern file may name one")
        return read_entries(Path(declared.span.file).parent / str(declared.file.value), declared.name, root)
    return pa.array([str(list_value(item)) for item in declared.items], TEXT)


def _repeated(name: str, count: int, span: Span) -> Diagnostic:
    message = f"{count} entr{'y' if count == 1 else 'ies'} of `{name}` {'is' if count == 1 else 'are'} there twice"
    return Diagnostic("CEP804", message, span, (), _HELP["CEP804"], Severity.WARNING)
