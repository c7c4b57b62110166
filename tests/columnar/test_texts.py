"""Kernels that number and take texts return the same as Arrow does for two joined columns."""

import pickle
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cep.columnar.batch import TEXT, read_only
from cep.columnar.decode import Decoded, key_groups, key_pages, key_slots
from cep.columnar.texts import encoded, numbered, rows_among, table_key, taken
from cep.engine.advance import advance
from cep.state.past import encode_page
from tests.columnar.common import assert_crafted_cost_what_others_do, key_hashes
from tests.engine.rules import batch, program, rule


def _texts(random: Random, count: int, different: int) -> pa.Array:
    """Return a slice of an array, like the arrays of a batch."""
    words = ["", "a", "\u00e9", *(f"key-{number}" for number in range(different))]
    before, after = random.randrange(3), random.randrange(3)
    drawn = [random.choice(words) for _ in range(before + count + after)]
    return pa.array(drawn, TEXT).slice(before, count)


@pytest.mark.parametrize("seed", range(30))
def test_texts_are_numbered_as_arrow_does(seed: int) -> None:
    random = Random(seed)
    # The table of the kernel starts small. It grows in steps or at once, in the first column or in the second.
    different = random.choice([1, 5, 1_000, 4_000])
    first, second = (_texts(random, random.choice([0, 1, 7, 300, 9_000]), different) for _ in range(2))
    if random.random() < 0.5:
        first = first.unique()
    keys, codes = numbered(first, second)
    expected = pa.concat_arrays([first, second]).dictionary_encode()
    keys.validate(full=True)
    assert keys.equals(expected.dictionary)
    assert codes.tolist() == expected.indices.to_pylist()


def test_what_is_known_already_is_not_copied() -> None:
    old_keys = pa.array(["b", "a", "c"], TEXT)
    keys, codes = numbered(old_keys, pa.array(["c", "b", "c"], TEXT))
    assert keys is old_keys
    assert codes.tolist() == [0, 1, 2, 2, 0, 2]
    assert numbered(pa.array(["b", "b", "c"], TEXT), pa.array(["d"], TEXT))[0].to_pylist() == ["b", "c", "d"]


@pytest.mark.parametrize("seed", range(10))
def test_texts_are_taken_as_arrow_does(seed: int) -> None:
    random = Random(seed)
    first, second = (_texts(random, random.choice([0, 1, 50]), 9) for _ in range(2))
    both = pa.concat_arrays([first, second])
    count = 40 if len(both) else 0
    rows = np.array([random.randrange(len(both)) for _ in range(count)], np.int64)
    joined = taken(rows, first, second)
    joined.validate(full=True)
    assert joined.equals(both.take(pa.array(rows)))
    alone = rows[rows < len(first)]
    assert taken(alone, first).equals(first.take(pa.array(alone)))


def test_a_slot_is_a_page_of_a_key_group() -> None:
    keys = pa.array([f"card-{number}" for number in range(2_000)], TEXT)
    expected = (key_groups(keys, 32).astype(int) - 8) * 1_600 + key_pages(keys, 32, 1_600)
    assert key_slots(keys, 32, 1_600, 8).tolist() == expected.tolist()
    hashes = key_hashes(keys).tolist()
    assert expected.tolist() == [(code % 32 - 8) * 1_600 + code // 32 % 1_600 for code in hashes]
    assert min(expected) < 0


@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_looked_up_as_arrow_does(seed: int) -> None:
    drawn = Random(seed)
    texts, among = (
        pa.array(drawn.choices(["", "a", "b", "ab", "ä", None, *map(str, range(20))], k=count), pa.large_string())
        for count in (50, drawn.choice((0, 9, 30)))
    )
    expected = pc.fill_null(pc.index_in(texts, value_set=among, skip_nulls=True), -1).to_pylist()
    assert rows_among(texts, among).tolist() == rows_among(pa.chunked_array([texts]), among).tolist() == expected


def test_a_lookup_of_texts_that_collide_in_arrow_costs_what_others_do() -> None:
    def look_up(texts: pa.Array) -> None:
        ids = Decoded(texts, np.zeros(len(texts), np.int16), np.zeros(len(texts), np.int64), {}, ())
        assert len(ids.without(texts.slice(1))) == 1

    assert_crafted_cost_what_others_do(look_up)


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
    monkeypatch.setattr("cep.columnar.texts._key", read_only(np.array(key, np.uint64)))
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
        columns = (matches.rule, matches.key, matches.detected_ms, matches.offsets, matches.variable)
        results += [encode_page(state), *(column.tobytes() for column in (*columns, matches.event_time_ms))]
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
