"""JSON in the forms that writers choose: the same records as in JSON lines, or a refusal that names the file."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cep.base.errors import InputError, UsageError
from cep.cli import main as cli
from cep.columnar.decode import concat_decoded
from cep.lists.entries import read_entries
from cep.sources.files import read_key
from cep.sources.inputs import given_inputs, kind_of
from cep.sources.json_forms import as_json_lines
from cep.sources.json_table import read_json_table
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from tests.columnar.common import GOOD, ONE

ROWS = [{**GOOD, "tx_id": f"t{n}", "card_id": f"c{n % 3}", "note": 'a "{,}\\" note\n'} for n in range(60)]
FORMS: dict[str, Callable[[Any], str]] = {
    "lines": lambda rows: "\n".join(map(json.dumps, rows)),
    "an array on one line": json.dumps,
    "an array with an object a line": lambda rows: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n",
    "an array that is indented": lambda rows: json.dumps(rows, indent=2),
    "a comma after each": lambda rows: ",\n".join(map(json.dumps, rows)) + ",\n",
    "objects that are indented": lambda rows: "\r\n".join(json.dumps(row, indent=1) for row in rows),
    "objects in a row": lambda rows: "".join(map(json.dumps, rows)),
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_same_records(form: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(FORMS[form](ROWS).encode(encoding))
    decoded = concat_decoded(ONE, [piece.decode() for piece in read_pieces(path, ONE).pieces])
    assert (decoded.event_id.to_pylist(), decoded.poison) == ([row["tx_id"] for row in ROWS], ())
    assert len(read_key(path, ONE, ("card_id",), "c1").batch) == 20
    assert read_json_table(path)["note"].to_pylist() == [row["note"] for row in ROWS]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_job_reads_each_form_and_goes_on_in_it(form: str, encoding: str, stop: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(FORMS[form](ROWS).encode(encoding))
    source, records = FilesSource(tmp_path, follow=False), list[Any]()
    for _ in range(stop):
        records += [each for chunk in source.poll(3, 0.0) for each in chunk.values]
    again = FilesSource(tmp_path, follow=False)
    again.seek(source.positions())
    while not again.ended:
        records += [each for chunk in again.poll(7, 0.0) for each in chunk.values]
    assert [json.loads(record)["tx_id"] for record in records] == [row["tx_id"] for row in ROWS]


def test_random_texts_in_random_blocks() -> None:
    rng = random.Random(5)

    def value(depth: int = 0) -> Any:
        kind = rng.randrange(5 if depth < 3 else 3)
        if kind == 0:
            return "".join(rng.choice('ab"\\{}[],\n é') for _ in range(rng.randrange(6)))
        if kind in (1, 2):
            return rng.choice([None, 1, -2.5, True])
        if kind == 3:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        return {f"k{n}" + rng.choice([",", '"', "\\"]): value(depth + 1) for n in range(rng.randrange(4))}

    for _ in range(300):
        rows = [{"i": n, "v": value()} for n in range(rng.randrange(1, 6))]
        text = FORMS[rng.choice(list(FORMS))](rows)
        file = as_json_lines(io.BytesIO(text.encode(rng.choice(ENCODINGS))), "a.json")
        lines, size = b"", rng.choice([1, 3, 7, 100])
        while block := file.read(size):
            lines += block
        assert [json.loads(line) for line in lines.split(b"\n") if line.strip()] == rows, text


def test_a_broken_first_line_is_a_bad_record_of_its_own() -> None:
    text = b'{"a": 1\n{"a": 2}\n{"a": 3}\n'
    assert as_json_lines(io.BytesIO(text), "a.json").read(1 << 20) == text


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": ', '[\n{"a": "x'])
def test_a_text_that_ends_inside_of_an_object_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cut\.json cannot be read: .* ends inside"):
        [piece.decode() for piece in read_pieces(path, ONE).pieces]


def test_a_column_that_changes_its_type_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"v": 1, "w": 1}\n{"v": "x"}\nnothing\n{"v": {"a": 2}, "w": 2}\n')
    table = read_json_table(path)
    assert table.to_pydict() == {"v": ["1", "x", '{"a":2}'], "w": [1, None, 2]}


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_list_file_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(("cards\n" if name == "a.csv" else "").encode("utf-8-sig" if name == "a.csv" else "utf-8"))
    path.write_bytes(path.read_bytes() + ("c1\nc2\n").encode("utf-8" if name == "a.csv" else "utf-8-sig"))
    assert read_entries(path, "cards").to_pylist() == ["c1", "c2"]


def test_files_that_are_not_there_are_mistakes_of_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    for name, message in [
        ("empty", "no Parquet, CSV or JSON lines"), ("*.parq", "no file matches"), ("gone.csv", "there are no events"),
        ("bad.parquet", "cannot be read"), ("a.xlsx", "by its name"),
    ]:  # fmt: skip
        assert cli.main(["describe", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError):
        given_inputs([tmp_path / "*.x"])
    with pytest.raises(UsageError):
        kind_of(tmp_path / "empty")
