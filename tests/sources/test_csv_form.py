"""CSV of many countries and programs gives the same values for all signs and encodings; DuckDB and csv write it."""

from __future__ import annotations

import csv
import io
import itertools
from decimal import Decimal
from pathlib import Path

import pytest

from cep.base.errors import InputError, UsageError
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.file_form import FileForm, form_of_flags
from cep.columnar.mapping import mapping_of
from cep.lang.load import load_text
from cep.sources.check import check_records
from cep.sources.csv_form import open_csv, unique_names
from cep.sources.inputs import Records
from cep.sources.pieces import read_pieces

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
