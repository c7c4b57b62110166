"""A rejected record → the record without protected values, for a dead letter.

A readable record keeps the fields of the schema: protected ones as their token, others unchanged, but a run of twelve
digits or more is replaced by its length and a keyed digest. So is an unreadable record: its producer can compute the
same digest. Fields that the schema does not declare are counted.
Tested by: tests/columnar/test_tokens.py
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from cep.base.schema import Kind, Schema
from cep.base.secrets import SENSITIVE, SecretKey, secret_keys
from cep.columnar.decode import TOO_LONG, UNREADABLE_FILE, Poison
from cep.columnar.mapping import TYPE_FIELD
from cep.columnar.tokens import MANY_DIGITS, NO_CARD_NUMBER, is_card_number, token_of

_QUOTED = re.compile(r"(field `[^`]*`: ).*( is not a value of type .*)", re.DOTALL)
_NO_VALUE = ("missing_field", TOO_LONG, NO_CARD_NUMBER)  # their reasons quote nothing
_TIMES_MS_MAX = 4_000_000_000_000  # of thirteen digits, up to the year 2096, and no card number begins so


def redact(schema: Schema, poison: Poison) -> Poison:
    """Return the record as a letter may have it. A schema that protects nothing changes nothing. Raises: UsageError."""
    if not schema.protected:
        return poison
    key = secret_keys()[0]
    return replace(poison, reason=_reason(poison), record=_record(schema, poison, key))


def shown_keys(schema: Schema, keys: Mapping[str, Sequence[str]]) -> dict[str, list[object]]:
    """Return the keys of an event, by their fields, as a letter may have them."""
    if not schema.protected:
        return {fields: list(texts) for fields, texts in keys.items()}
    key = secret_keys()[0]
    return {fields: [_without_long_numbers(text, key) for text in texts] for fields, texts in keys.items()}


def _reason(poison: Poison) -> str:
    """Return the reason of a rejected record (poison) without the values that it quotes, which may be protected."""
    if len(poison.bad_values) > 1:  # each of several reasons may quote a value
        return "; ".join(f"field `{name}`: {code}" for code, name in poison.bad_values)
    if poison.code in _NO_VALUE:  # its reason quotes none
        return poison.reason
    if poison.code == UNREADABLE_FILE:
        return poison.reason.partition(": ")[0]  # without the error, which may quote
    if poison.code == "unreadable":
        return "the record cannot be read; what it has is not shown, for it may have a protected value"
    quoted = _QUOTED.fullmatch(poison.reason)
    if quoted is not None:
        return f"{quoted[1]}what it has{quoted[2]}"  # in place of the value
    return "the event type is not one of the schema's" if poison.code == "unknown_event_type" else poison.code


def _record(schema: Schema, poison: Poison, key: SecretKey) -> str:
    """Return a rejected record (poison) for a dead letter: protected fields as tokens, others without long numbers."""
    try:
        fields = orjson.loads(poison.record)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        return f"{len(poison.record)} characters, {_digest(poison.record, key)}"
    protected, columns = dict(schema.protected), schema.columns()
    shown: dict[str, object] = {}
    undeclared = 0
    for name, value in fields.items():
        if name in protected:
            shown[name] = _token(protected[name].protected, value, key)
        elif name in columns and columns[name].kind is Kind.TIME and _is_time(value):
            shown[name] = value
        elif name in columns or name == TYPE_FIELD:
            shown[name] = _without_long_numbers(value, key)
        else:
            undeclared += 1
    if undeclared:
        shown["undeclared"] = f"{undeclared} fields that the schema does not declare"
    return orjson.dumps(shown).decode()


def _token(kind: str, value: object, key: SecretKey) -> object:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    return token_of(key, kind, text, {key.id}) or f"{len(text)} characters, {_digest(text, key)}"


def _digest(text: str, key: SecretKey) -> str:
    return key.token(SENSITIVE, text.encode("utf-8", "backslashreplace"))


def _is_time(value: object) -> bool:
    return type(value) is int and abs(value) < _TIMES_MS_MAX and not is_card_number(str(abs(value)).encode())


def _without_long_numbers(value: object, key: SecretKey) -> object:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    masked = MANY_DIGITS.sub(lambda digits: f"({len(digits[0])} characters, {_digest(digits[0], key)})", text)
    return value if masked == text else masked
