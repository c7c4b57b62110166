"""The words of labels → honest, fraud, or a question to the user.

    honest    empty, 0, false, no, none, legit, genuine, normal, OK, not fraud …
    fraud     1, true, yes, fraud, bad …; a word such as stolen_card is its kind
    unknown   `--label-words review=honest`, or `*=fraud` for all others

A wrong guess turns each figure around, so no unknown word is guessed. F alone is false only next to T or true: next to
G it may be fraud.
Tested by: tests/analysis/test_labels.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import UsageError
from cep.columnar.batch import TEXT
from cep.columnar.texts import encoded

HONEST = (
    "no", "n", "f", "false", "nan", "none", "null", "n a", "na", "legit", "legitimate", "genuine", "normal", "ok",
    "okay", "good", "honest", "benign", "clean", "licit", "negative", "not fraud", "no fraud", "non fraud", "nonfraud",
    "notfraud",
)  # fmt: skip
FRAUD = ("yes", "y", "t", "true", "fraud", "fraudulent", "bad", "positive", "illicit")
# A label with one of these words is a kind of fraud, such as stolen_card.
KIND_WORDS = frozenset({
    "fraud", "fraudulent", "stolen", "theft", "scam", "phishing", "laundering", "takeover", "counterfeit", "chargeback",
    "mule", "skimming", "illicit",
})  # fmt: skip
ALL_OTHERS = "*"
_NO = {"no", "not", "non"}
_ZERO = re.compile(r"[+-]?0+(\.0*)?")
_ONE = re.compile(r"\+?0*1(\.0*)?")
_SIGNS = re.compile(r"[^a-z0-9]+")
_SHOWN = 8
_WORDS_MAX = 1_000  # a column with more different texts has no labels


def label_words(pairs: Sequence[str], flag: str = "--label-words") -> dict[str, bool]:
    """Read WORD=fraud and WORD=honest: True for fraud. Raises: UsageError."""
    words = {}
    for pair in pairs:
        word, sign, verdict = pair.rpartition("=")
        if not sign or verdict.strip() not in ("fraud", "honest"):
            raise UsageError(f"{flag} {pair}: write WORD=fraud or WORD=honest, and {ALL_OTHERS}=fraud for all others")
        words[word.strip().lower()] = verdict.strip() == "fraud"
    return words


def verdicts(labels: pa.Array, words: Mapping[str, bool], name: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Decide which labels mean fraud, and which of these name a kind of fraud: bool[N] each. A null is honest.

    `words` are the user's answers about words. Raises: UsageError with the unknown words.
    """
    coded = encoded(labels.cast(TEXT))
    codes = np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    texts = coded.dictionary.slice(0, _WORDS_MAX + 1).to_pylist()
    label_values = [_verdict(text, words) for text in texts]
    plain_words = {text.strip().lower() for text in texts}
    if "f" in plain_words and "f" not in words and not plain_words & {"t", "true"}:
        doubt = words.get(ALL_OTHERS)
        label_values = [
            doubt if text.strip().lower() == "f" else value for text, value in zip(texts, label_values, strict=True)
        ]
    unknown = [code for code, verdict in enumerate(label_values) if verdict is None]
    if unknown or len(coded.dictionary) > _WORDS_MAX:
        counts = np.bincount(codes[codes >= 0], minlength=len(coded.dictionary))
        raise UsageError(_question(name, [(texts[code], int(counts[code])) for code in unknown]))
    is_fraud = np.array([*map(bool, label_values), False], np.bool_)
    is_kind = np.array([*(bool(v) and not _is_plain(text) for text, v in zip(texts, label_values, strict=True)), False])
    return is_fraud[codes], is_kind[codes]


def _verdict(text: str, words: Mapping[str, bool]) -> bool | None:
    """Return True for fraud, False for honest, None for an unknown word."""
    label = text.strip().lower()
    if label in words:
        return words[label]
    plain = _SIGNS.sub(" ", label).strip()
    if not label or plain in HONEST or _ZERO.fullmatch(label):
        return False
    if _is_plain(label):
        return True
    parts = set(plain.split())
    if parts & KIND_WORDS:
        return not parts & _NO
    return words.get(ALL_OTHERS)


def _is_plain(text: str) -> bool:
    """Return True for a label that says fraud without a kind."""
    label = text.strip().lower()
    return bool(_ONE.fullmatch(label)) or _SIGNS.sub(" ", label).strip() in FRAUD


def _question(name: str, unknown: list[tuple[str, int]]) -> str:
    unknown.sort(key=lambda each: -each[1])
    shown = ", ".join(f"{text!r} ({count:,})" for text, count in unknown[:_SHOWN])
    more = " and more" if len(unknown) > _SHOWN else ""
    first = unknown[0][0] if unknown else "word"
    return (
        f"{name} has words that may mean fraud or not: {shown}{more}. Say it of each, as in --label-words "
        f"{first}=fraud or --label-words {first}=honest; {ALL_OTHERS}=fraud is for all others. These mean honest: "
        f"empty, 0, {', '.join(HONEST)}. These mean fraud: 1, {', '.join(FRAUD)}, and words with "
        f"{', '.join(sorted(KIND_WORDS))}"
    )
