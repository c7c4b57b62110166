"""Patterns → the lists in which they look tokens up; and entries of a list → how many of them are no tokens.

A field of type `pan` or `sensitive` is a token in a rule. A list that it is looked up in has tokens, too: a card number
would match nothing, and stay in a file, in the topic, in the state and in letters.
Tested by: tests/rulebook/test_list_tokens.py
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

_TEXTS = ("string", "prefix")  # of lists that a text is looked up in; no other field is protected


def token_lists(pattern: PatternIR) -> set[tuple[str, str]]:
    """Return (name, kind) of each list in which a pattern looks a protected field up.

    One that is given in place is the JSON of its entries. A parameter that nobody has given stands for its default.
    """
    defaults = {param.name: param.default for param in pattern.params}
    calls = (call for call in nodes_of(pattern, Call) if call.fn == IN_LIST)
    lists = set()
    for looked, of in (call.arguments[:2] for call in calls):
        name = of.value if isinstance(of, Const) else defaults.get(of.name) if isinstance(of, Param) else None
        if looked.type.protected and isinstance(name, str):
            lists.add((name, list_kind(of.type)))
    return lists


def raw_in_place(pattern: PatternIR) -> int:
    """Count the entries that are no tokens, of lists that a rule gives in place."""
    return sum(raw_count(pa.array(json.loads(name), TEXT)) for name, _ in token_lists(pattern) if name.startswith("["))


def raw_count(entries: pa.Array) -> int:
    """Count the entries, large_string, that are no tokens."""
    is_token = pc.match_substring_regex(entries, f"^(?:{TOKENS_MATCH})$")
    return len(entries) - (pc.sum(is_token).as_py() or 0)


def raw_keys(keys: Keys, kind: str) -> int:
    """Count the keys of a set that are no tokens."""
    if kind not in _TEXTS:
        return 0
    offsets = np.ascontiguousarray(keys.offsets, np.int64)
    data = np.ascontiguousarray(keys.data)
    return raw_count(pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(data)))
