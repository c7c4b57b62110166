"""A record of a list, and the rules in force → how many of its entries are values where the rules see tokens.

A field of type `pan` or `sensitive` is a token in a rule. A list that it is looked up in has tokens, too: a card number
would match nothing, and stay in the topic, in the state and in letters.
Tested by: tests/rulebook/test_list_tokens.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.base.secrets import token_key
from cep.lang.functions import IN_LIST
from cep.lang.ir import Call, Const
from cep.lang.walk import nodes
from cep.model.rule import ListRecord
from cep.nfa.deployed import DeployedRule


def raw_entries(record: ListRecord, rules: Iterable[DeployedRule]) -> int:
    """Count the entries that are no tokens, of a list in which a rule looks a protected field up.

    Such entries may be removed, if they came before the rule.
    """
    if record.change == "remove":
        return 0
    raw = sum(isinstance(entry, str) and token_key(entry) is None for entry in record.entries)
    return raw if raw and any(_looks_up(rule, record.id) for rule in rules) else 0


def _looks_up(rule: DeployedRule, name: str) -> bool:
    calls = (node for node in nodes(rule.pattern) if isinstance(node, Call) and node.fn == IN_LIST)
    named = ((call.arguments[0].type, call.arguments[1]) for call in calls)
    return any(looked.protected and isinstance(of, Const) and of.value == name for looked, of in named)
