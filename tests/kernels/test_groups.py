"""Different pairs have different numbers, in the order of their first occurrence; other pairs are looked up in them."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT
from cep.columnar.table_key import table_key
from cep.functions.text_numbers import TextNumbers
from cep.histories.table import empty_places, grouped
from cep.kernels.groups import find_pairs, group_pairs


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_a_dictionary(seed: int) -> None:
    random = Random(f"groups {seed}")
    most = random.choice((1, 3, 50, 2**62))
    pairs = [(random.randint(-most, most), random.randint(0, most)) for _ in range(random.choice((0, 1, 2, 200)))]
    others = [random.choice([*pairs, (most, -1), (0, 0)]) for _ in range(50)]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    codes, firsts = grouped(first, second)
    assert codes.tolist() == [numbers[pair] for pair in pairs]
    assert firsts.tolist() == [pairs.index(pair) for pair in numbers]
    places, group_numbers = empty_places(len(pairs)), np.empty(len(others), np.int64)
    rows, codes = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int64)
    assert group_pairs(first, second, table_key(), places, rows, codes) == len(numbers)
    queries = np.array(others, np.int64).T.copy()
    find_pairs(first, second, table_key(), places, rows, queries[0], queries[1], group_numbers)
    assert group_numbers.tolist() == [numbers.get(pair, -1) for pair in others]


@pytest.mark.parametrize("seed", range(5))
def test_texts_are_found_among_different_ones(seed: int) -> None:
    random = Random(f"texts {seed}")
    texts = ["".join(random.choices("abä", k=random.randint(0, 4))) for _ in range(300)]
    distinct = list(dict.fromkeys(texts[: random.choice((0, 1, 20, 200))]))
    numbers = TextNumbers(pa.array(["", *distinct], TEXT).slice(1)).of(pa.array(["x", *texts], TEXT).slice(1))
    assert numbers.tolist() == [distinct.index(text) if text in distinct else -1 for text in texts]
