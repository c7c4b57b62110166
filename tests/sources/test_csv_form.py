"""Forms of text files: CSV of many countries and programs, JSON as writers choose. The values are the same in each."""

import csv
import io
import itertools
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cep.base.errors import InputError, UsageError
from cep.cli import main as cli
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.mapping import FileForm, form_of_flags, mapping_of
from cep.lang.load import load_text
from cep.lists.entries import read_entries
from cep.sources.check import check_records
from cep.sources.csv_form import open_csv, unique_names
from cep.sources.files import read_key
from cep.sources.inputs import Records, given_inputs, kind_of
from cep.sources.json_lines import as_json_lines
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.sources.tables import read_json_table
from tests.columnar.common import GOOD, ONE
from tests.output_of import OutputOf

SCHEMA = load_text("event n { i id  event_time time  h string  v decimal(2) }").schema
AMOUNTS = [Decimal(n * 9_973).scaleb(-2) for n in range(1, 40)]
SIGNS = [(".", ""), (",", ""), (",", "."), (".", ","), (",", "\u00a0"), (".", "'")]


def read(path: Path, form: FileForm | None = None) -> tuple[Decoded, list[str]]:
    mapping = mapping_of(file=form)
    lines = check_records(Records((path,), mapping), SCHEMA)
    return concat_decoded(SCHEMA, [piece.decode() for piece in read_pieces(path, SCHEMA, mapping).pieces]), lines


def text_of(delimiter: str, quote: str, decimal: str, thousands: str, ending: str = "\n") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, quotechar=quote, lineterminator=ending)
    writer.writerow(["i", "event_time", "h", "v"])
    for n, amount in enumerate(AMOUNTS):
        shown = f"{amount:,}" if thousands else str(amount)
        shown = shown.translate({ord(","): thousands, ord("."): decimal})
        writer.writerow([f"e{n}", "2026-03-01T10:00:00Z", f"Müller{delimiter} {quote}Söhne{quote}", shown])
    return file.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_each_form_has_the_same_values(encoding: str, delimiter: str, tmp_path: Path) -> None:
    for (decimal, thousands), quote in itertools.product(SIGNS, ('"', "'")):
        path = tmp_path / "a.csv"
        if thousands == quote:
            continue
        path.write_bytes(text_of(delimiter, quote, decimal, thousands, "\r\n").encode(encoding))
        form = FileForm(quote=quote) if quote == "'" else None
        decoded, lines = read(path, form)
        assert decoded.columns["v"].to_pylist() == [int(amount * 100) for amount in AMOUNTS]
        assert set(decoded.columns["h"].to_pylist()) == {f"Müller{delimiter} {quote}Söhne{quote}"}
        is_usual = (delimiter, quote, decimal, thousands, encoding[:5]) == (",", '"', ".", "", "utf-8")
        assert bool(lines) is not is_usual


def test_the_form_is_said_in_one_line(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(text_of(";", '"', ",", ".").encode("cp1252"))
    _, lines = read(tmp_path)
    form = "`;` between fields, `,` as decimal sign and `.` for thousands, encoding cp1252"
    assert lines == [f"2 files such as {tmp_path / 'a.csv'}: {form}; flags such as --delimiter say otherwise"]


def test_a_number_with_two_meanings_is_refused_until_somebody_says_which(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('i,event_time,h,v\na,2026-03-01T10:00:00Z,x,"1,200"\n')
    with pytest.raises(InputError, match=r"a\.csv: 1,200 is one number .* --decimal"):
        read(path)
    assert read(path, FileForm(decimal=","))[0].columns["v"].to_pylist() == [120]
    assert read(path, FileForm(decimal="."))[0].columns["v"].to_pylist() == [120_000]


def test_signs_that_are_named_win(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("i|event_time|h|v\na|2026-03-01T10:00:00Z|'x;y'|5\n".encode("cp1252"))
    named = FileForm("|", "'", "cp1252")
    assert read(path, named)[0].columns["h"].to_pylist() == ["x;y"]
    assert open_csv(path, FileForm(delimiter=";")).names == ("i|event_time|h|v",)


@pytest.mark.parametrize(
    ("text", "names"),
    [("sep=;\na;b\n1;2\n", ("a", "b")), ("\n\na,b\n1,2\n", ("a", "b")), ("a\n1\n2\n", ("a",)), ("", ()),
     (",x,x\n0,1,2\n", ("#1", "x", "x#2")), ("a,b", ("a", "b"))],
)  # fmt: skip
def test_names_of_columns(text: str, names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert open_csv(path, FileForm()).names == names


def test_names_are_different() -> None:
    assert unique_names(["Account", "", "Account", " b ", ""]) == ("Account", "#2", "Account#2", "b", "#5")


@pytest.mark.parametrize(
    "signs", [(";;", "", "", "", ""), ("", "", "utf-99", "", ""), ("", "", "", ";", ""), ("", "", "", ",", ",")]
)
def test_signs_that_no_file_has(signs: tuple[str, str, str, str, str]) -> None:
    with pytest.raises(UsageError):
        form_of_flags(*signs)


def test_names_of_signs() -> None:
    assert form_of_flags("tab", "", "latin1", "", ".") == FileForm("\t", "", "iso8859-1", ",", ".")


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
    path.write_text('null\n{"v": 1}\n')  # Arrow's own reader ends the process
    assert read_json_table(path).to_pydict() == {"v": [1]}


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_list_file_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(("cards\n" if name == "a.csv" else "").encode("utf-8-sig" if name == "a.csv" else "utf-8"))
    path.write_bytes(path.read_bytes() + ("c1\nc2\n").encode("utf-8" if name == "a.csv" else "utf-8-sig"))
    assert read_entries(path, "cards").to_pylist() == ["c1", "c2"]


def test_files_that_are_not_there_are_mistakes_of_the_caller(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    for name, message in [
        ("empty", "no Parquet, CSV or JSON lines"), ("*.parq", "no file matches"), ("gone.csv", "there are no events"),
        ("bad.parquet", "cannot be read"), ("a.xlsx", "by its name"),
    ]:  # fmt: skip
        assert message in output_of(cli.main(["describe", str(tmp_path / name)]), 2).err
    with pytest.raises(UsageError):
        given_inputs([tmp_path / "*.x"])
    with pytest.raises(UsageError):
        kind_of(tmp_path / "empty")
