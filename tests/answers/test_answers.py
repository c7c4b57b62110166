"""Each situation of this folder gets the right answer."""

import pytest

from tests.answers import Row
from tests.answers.__main__ import all_rows


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: f"{row.section}-{row.name}")
def test_an_answer_is_right(row: Row) -> None:
    assert row.actual() == row.expected
