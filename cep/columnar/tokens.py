"""Columns of fields that are declared `pan` or `sensitive` → columns of tokens; later code never has the values.

A `pan` may have spaces and hyphens between its digits; the token is that of the digits. A value that is a token of one
of the job's keys stays, so that rejected records can be sent again.
Tested by: tests/columnar/test_tokens.py
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.errors import UsageError
from cep.base.limits import PAN_DIGITS_MAX, PAN_DIGITS_MIN, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.secrets import PAN, TOKEN_STARTS, SecretKey, secret_keys, token_key
from cep.columnar.batch import TEXT
from cep.columnar.convert import Written, convert
from cep.columnar.texts import encoded

NO_CARD_NUMBER = "no_card_number"
# Twelve ASCII digits or more, also in groups: with up to three characters that are no letters between two digits.
MANY_DIGITS = re.compile(r"\d(?:(?:[^\w\n]|_){0,3}\d){11,}")  # of any script: 4, ４ and ٤ are one digit
# A time such as 2026-03-01 10:00 is not a card number: no card begins with 19 or 20.
_TIME = r"\b(?:19|20)[0-9]{2}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9](?::[0-5][0-9])?(?![0-9])"
_TIME_OR_DIGITS = re.compile(f"(?P<time>{_TIME})|{MANY_DIGITS.pattern}")
_URL_CHARACTER = re.compile(r"%[0-9A-Fa-f]{2}")
_TIME_OR_URL_DIGITS = re.compile(_TIME_OR_DIGITS.pattern.replace("{0,3}", "{0,9}"))  # three characters of a URL
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")
_ZERO = ord("0")
Reject = Callable[[str, NDArray[np.bool_], str, str], None]


def is_card_number(digits: bytes) -> bool:
    """Return True for 12 to 19 ASCII digits of which the last one checks the others (Luhn)."""
    if not PAN_DIGITS_MIN <= len(digits) <= PAN_DIGITS_MAX or not digits.isdigit():
        return False
    total = sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - _ZERO * len(digits)
    return total % 10 == 0


def hide_card_numbers(text: str) -> str:
    """Return a text without card numbers, with any characters between or around their digits.

    `%20` is a character of a URL, and two digits of another text: such a text is searched in both ways.
    """
    if "%" in text:
        text = _hidden(text, _TIME_OR_URL_DIGITS.finditer(_URL_CHARACTER.sub("   ", text)))
    return _hidden(text, _TIME_OR_DIGITS.finditer(text))


def _hidden(text: str, runs: Iterable[re.Match[str]]) -> str:
    shown, end = [], 0
    for run in runs:
        shown += [text[end : run.start()], _without_card_numbers(text[run.start() : run.end()], run)]
        end = run.end()
    return "".join((*shown, text[end:]))


def _without_card_numbers(text: str, run: re.Match[str]) -> str:
    """Hide the card numbers in `text`, a run of many digits or a time. `run` is its match, with blanks in place of a
    URL's %20. From each digit on, the longest card number becomes •••."""
    if run["time"]:  # the pattern finds times so that they stay as they are
        return text
    positions = [position for position, character in enumerate(run[0]) if character.isdecimal()]
    digits = "".join(str(unicodedata.decimal(text[position])) for position in positions).encode()
    shown, end, start = [], 0, 0
    while start <= len(digits) - PAN_DIGITS_MIN:
        sizes = range(min(PAN_DIGITS_MAX, len(digits) - start), PAN_DIGITS_MIN - 1, -1)
        size = next((size for size in sizes if is_card_number(digits[start : start + size])), 0)
        if size:
            shown += [text[end : positions[start]], "•••"]
            end = positions[start + size - 1] + 1
        start += size or 1  # after the number, or at the next digit
    return "".join((*shown, text[end:]))


def token_of(key: SecretKey, kind: str, text: str, ids: frozenset[str] | set[str]) -> str | None:
    """Return the token of a value, None for a `pan` that is not a card number. `ids` are the ids of the job's keys."""
    if text.startswith(TOKEN_STARTS) and token_key(text) in ids and text.startswith(PAN) == (kind == PAN):
        return text
    value = text.encode()
    if kind != PAN:
        return key.token(kind, value)
    digits = value.translate(None, b" -")
    return key.token(kind, digits) if is_card_number(digits) else None


def with_tokens(
    schema: Schema, columns: Mapping[str, pa.Array], reject: Reject, time: Written | None = None
) -> Mapping[str, pa.Array]:
    """Replace the values of the schema's protected fields by tokens. A value that is not a card number becomes null.

    `reject` gets the field of such values, a mask of their rows, a code and a reason. `time` is how the source writes
    times, None for the usual forms. Raises: UsageError without keys.
    """
    keys = secret_keys()
    row_keys = _key_of_rows(schema, columns, keys, time)
    replaced = dict(columns)
    for name, type_ in schema.protected:
        if name not in columns:
            continue
        texts = convert(columns[name], type_)
        if texts.bad is not None:
            reject(name, texts.bad, "wrong_value", f"field `{name}`: the value is not a value of type {type_}")
        replaced[name], bad = _tokens(texts.values, type_.protected, keys, row_keys)
        if bad.any():
            reject(name, bad, NO_CARD_NUMBER, f"field `{name}`: the value is no card number")
    return replaced


def _tokens(
    texts: pa.Array, kind: str, keys: Sequence[SecretKey], row_keys: NDArray[np.int64] | None
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the token of each text, computed once per distinct text and key, and a mask of the invalid texts.

    `row_keys` is the index of each row's key, None if all rows have the first key.
    """
    ids = {key.id for key in keys}
    coded = encoded(texts)
    distinct_texts = coded.dictionary.to_pylist()
    codes = np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    has_text = codes >= 0
    key_indexes = np.zeros(len(codes), np.int64) if row_keys is None else row_keys
    tokens: list[str | None] = [None] * (len(distinct_texts) * len(keys))  # by key, then by text
    for index, key in enumerate(keys[:1] if row_keys is None else keys):
        # Only the texts of the key's own rows: a batch rarely has rows of two keys.
        used = np.arange(len(distinct_texts)) if row_keys is None else np.unique(codes[has_text & (row_keys == index)])
        for code in used.tolist():
            tokens[index * len(distinct_texts) + code] = token_of(key, kind, distinct_texts[code], ids)
    place = np.where(has_text, key_indexes * len(distinct_texts) + codes, -1)
    values = pa.array(tokens, TEXT).take(pa.array(place, mask=~has_text))
    return values, has_text & np.asarray(pc.is_null(values))


def _key_of_rows(
    schema: Schema, columns: Mapping[str, pa.Array], keys: Sequence[SecretKey], time: Written | None
) -> NDArray[np.int64] | None:
    """Return the index of the secret key that makes each row's tokens: the last key that starts at or before the row's
    time. None: all rows have the first key."""
    from_ms = np.array([key.from_ms for key in keys])
    if from_ms.max() == TIME_MS_MIN:
        return None
    name = schema.event_types[0].time_field  # all types have one name for it
    if name not in columns:
        return None
    times = np.asarray(convert(columns[name], schema.columns()[name], time).values.fill_null(TIME_MS_MIN))
    # Keys without a time (TIME_MS_MIN) come first. Only the first one makes tokens, for rows before all other keys.
    untimed = int((from_ms == TIME_MS_MIN).sum())
    numbers = np.searchsorted(from_ms[untimed:], times, side="right") + untimed - 1
    return np.where(numbers < untimed, 0, numbers).astype(np.int64)


def tokens_of_key(schema: Schema, domain: Sequence[str], parts: Sequence[str]) -> list[list[str]]:
    """Convert the parts of a key to the form that events have: protected values as tokens.

    Returns one list for each secret key of the job, equal lists once: events before and after a change of keys may
    differ. Raises: UsageError without keys, or for an invalid card number in a `pan`.
    """
    protected = dict(schema.protected)
    if not protected.keys() & set(domain):
        return [list(parts)]
    keys = secret_keys()
    ids = {key.id for key in keys}
    variants: list[list[str]] = []
    for key in keys:
        variant = []
        for name, part in zip(domain, parts, strict=True):
            token = token_of(key, protected[name].protected, part, ids) if name in protected else part
            if token is None:
                raise UsageError(f"the value of `{name}` is neither a card number nor a token of one of the job's keys")
            variant.append(token)
        if variant not in variants:
            variants.append(variant)
    return variants
