"""Patterns → the lists in which they look up tokens; and the number of list entries that are not tokens.

A field of type `pan` or `sensitive` is a token in a rule, so a list for it must contain tokens. A card number would
match nothing, and would stay in a file, in the topic, in the state and in letters.

Tested by: tests/rulebook/test_suppression.py
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.schema import list_kind
from cep.base.secrets import TOKENS_MATCH
from cep.lang.functions import IN_LIST
from cep.lang.ir import Call, Const, Param, PatternIR
from cep.lang.walk import nodes_of
from cep.lists.entries import TEXT, Keys

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


def raw_in_place(pattern: PatternIR) -> int:
    """Count the entries that are not tokens, in lists that a rule writes in place."""
    return sum(raw_count(pa.array(json.loads(name), TEXT)) for name, _ in token_lists(pattern) if name.startswith("["))


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
