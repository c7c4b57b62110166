"""Results are the same to the byte for every key of the hash tables."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT, read_only
from cep.columnar.table_key import table_key
from cep.columnar.texts import encoded
from cep.engine.advance import advance
from cep.state.pages import encode_page
from tests.engine.rules import batch, program, rule

RULES = (
    "seq a+ any -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nskip none\nemit n = count(a)",
    "seq a\nwhere a: e distinct(e.note over 9 ms) > 1 and sum(e.amount over 20 ms by note) > 3.00\nemit n = a.note",
    'seq a\nwhere a: e lower(note) == "n1"',
    "seq a\nwhere a: e approx_distinct(e.note over 9 ms) > 1 and last(e by note).amount > 3.00",
    "seq (a | b) -> c\nwhere a: e kind == a\n b: e amount > 2.00\n c: e kind == c\nskip none",
)


def _results(key: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the states, matches and counters of some calls in sequence."""
    # The array is read-only like the real key: a writable one would need other kernels, which must be compiled first.
    monkeypatch.setattr("cep.columnar.table_key._key", read_only(np.array(key, np.uint64)))
    random, compiled, results = Random("tables"), program(*(rule(text, f"r{n}") for n, text in enumerate(RULES))), []
    state = None
    for start in range(0, 60, 12):
        times = range(start, start + 12)
        rows = [
            f"k{random.randrange(5)} {random.choice('aabc')}@{t} {random.randint(1, 9)}.00 N{random.randrange(4)}"
            for t in times
        ]
        advanced = advance(compiled, state, batch(*rows), start + 3)
        state, matches = advanced.keyed_state, advanced.matches
        columns = (
            matches.rule,
            matches.key,
            matches.detected_ms,
            matches.offsets,
            matches.variable,
            matches.event_time_ms,
        )
        results += [encode_page(state), *(column.tobytes() for column in columns)]
        results += [
            pickle.dumps((sorted(advanced.counters.items()), matches.event_id.to_pylist(), matches.keys.to_pylist()))
        ]
    return results


def test_another_key_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _results((1, 2), monkeypatch)
    assert sum(map(len, first)) > 10_000
    assert first == _results((2**64 - 1, 99), monkeypatch)


def test_the_key_is_nobody_elses() -> None:
    assert len(set(table_key().tolist())) == 2
    assert not table_key().flags.writeable


@pytest.mark.parametrize("seed", range(20))
def test_texts_are_encoded_as_arrow_does(seed: int) -> None:
    random = Random(f"encoded {seed}")
    different = ["", "a", "é", *(f"merchant-{n}" for n in range(random.choice([0, 3, 500])))]
    drawn = [None if random.random() < random.choice([0, 0.3]) else random.choice(different) for _ in range(300)]
    texts = pa.array(drawn, TEXT).slice(random.randrange(3))
    assert encoded(texts).equals(texts.dictionary_encode())
