"""Damaged CSV: each record is what Python's `csv` reads, or is rejected with its line. No row is lost in silence.

`python -m tests.sources.test_csv_damage 20000` compares as many random files.
"""

import csv
import io
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest

from cep.base.errors import InputError
from cep.base.limits import RECORD_BYTES_MAX
from cep.columnar.mapping import FileForm
from cep.lang.load import load_text
from cep.sources import csv_records
from cep.sources.check import check_records
from cep.sources.csv_form import LOOK_BYTES
from cep.sources.inputs import Records
from cep.sources.live.files import FilesSource
from cep.sources.tables import open_table
from tests.seeds import seeds

NAMES = ["i", "event_time", "k", "n"]
_LINES = re.compile(r"line (\d+)|lines (\d+) to (\d+)")
_COVERS = re.compile(r"covers (\d+) lines")
_PARTS = ["a", "b c", ",", '"', "\\", "\n", "\r\n", "ä", "'", ";", "1.5", " ", "x" * 50, '\\"', "|"]
_DAMAGE = ['"', "\\", ",", "\n", "\r", 'x"', '"x', "\0", "\r\n", '""', '\\"', ' "', '" ']
Rows = list[list[str]]
Rejected = list[tuple[int, int]]  # the first and the last line


def read_all(path: Path) -> tuple[Rows, Rejected]:
    """Return the rows that a replay reads, and the lines of each rejected one."""
    table = open_table(path, path, "csv", FileForm())
    rows, reasons = Rows(), list[str]()
    for each in table.batches(table.names):
        rows += [[value or "" for value in row.values()] for row in each.batch.to_pylist()]
        reasons += [line.reason for line in each.bad_lines]
    return rows, [lines_of(reason) for reason in reasons]


def read_live(path: Path) -> tuple[Rows, Rejected]:
    source = FilesSource(path, follow=False)
    rows, rejected = Rows(), Rejected()
    while chunks := source.poll(100, 0):
        for chunk in chunks:
            assert chunk.unreadable is None
            rows += [[value or "" for value in row.values()] for row in chunk.records.to_pylist()]
            rejected += [lines_of(line.reason) for line in chunk.bad_lines]
    return rows, rejected


def lines_of(reason: str) -> tuple[int, int]:
    match = _LINES.search(reason)
    assert match is not None, reason
    if covers := _COVERS.search(reason):
        return int(match[1]), int(match[1]) + int(covers[1]) - 1
    return (int(match[1]), int(match[1])) if match[1] else (int(match[2]), int(match[3]))


def expected_rows(text: str) -> list[tuple[int, list[str]]]:
    """Return what Python's csv reads: the first line of each row, and its fields."""
    rows, line, reader = [], 1, csv.reader(io.StringIO(text, newline=""))
    for row in reader:
        rows.append((line, row))
        line = reader.line_num + 1
    return [(line, row) for line, row in rows[1:] if row]


def random_file(rng: random.Random) -> tuple[str, Rows, bool]:
    """Return a text, its rows, and whether it is damaged."""
    rows = [["".join(rng.choices(_PARTS, k=rng.randrange(4))) for _ in NAMES] for _ in range(rng.randrange(1, 12))]
    rows = [[f"{n}{row[0]}", *row[1:]] for n, row in enumerate(rows)]
    file = io.StringIO(newline="")
    is_escaped = rng.random() < 0.2
    for row in [NAMES, *rows]:
        file.write(",".join(_field(value, is_escaped and row is not NAMES, rng) for value in row))
        file.write(rng.choice(["\n", "\r\n", "\n", "\r", "\n\n"]))
    text = file.getvalue()
    is_damaged = rng.random() < 0.6
    for _ in range(rng.choice([1, 1, 2, 5]) if is_damaged else 0):
        place = rng.randrange(len(",".join(NAMES)) + 1, len(text) + 1)
        text = text[:place] + rng.choice(_DAMAGE) + text[place + rng.choice([0, 0, 1, 3]) :]
    return text, rows, is_damaged


def _field(value: str, is_escaped: bool, rng: random.Random) -> str:
    if not is_escaped:
        is_quoted = rng.random() < 0.3 or any(sign in value for sign in ',"\r\n')
        return '"' + value.replace('"', '""') + '"' if is_quoted else value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def differences(seed: int, folder: Path) -> str:
    """Compare one random file with Python's csv. Return what is wrong, or nothing."""
    text, rows, is_damaged = random_file(random.Random(seed))
    path = folder / f"{seed}.csv"
    path.write_bytes(text.encode())
    try:
        read, rejected = read_all(path)
    except InputError as error:
        return "" if is_damaged and "csv cannot be read" in str(error) else str(error)
    if read_live(path) != (read, rejected):
        return "live"
    if not is_damaged and read == rows and not rejected:
        return ""
    if len(open_table(path, path, "csv", FileForm()).csv.form.quote) > 1:  # type: ignore[union-attr]
        return "" if is_damaged else f"read {read}\nnot {rows}"  # csv has another rule for other signs after it
    covered = {line for first, last in rejected for line in range(first, last + 1)}
    others = [row for line, row in expected_rows(text) if line not in covered]
    return "" if read == others and (is_damaged or not rejected) else f"read {read}\nnot {others}"


@pytest.mark.parametrize("seed", seeds(40))
def test_random_files_are_read_as_by_csv_or_rejected_by_line(seed: int, tmp_path: Path) -> None:
    for number in range(seed * 10, seed * 10 + 10):
        assert not differences(number, tmp_path), number


_HEAD = "i,event_time,k,n\n"
_T = "2026-03-01T10:00:00Z"


@pytest.mark.parametrize(
    ("text", "ids", "lines", "reason"),
    [
        (f'1,{_T},k,"open\n2,{_T},k,5\n3,{_T},k,5\n', [], [(2, 4)], "never closes"),
        (f'1,{_T},k,x\n2,{_T},k,"open\n3,{_T},k,"ok"\n4,{_T},k,x\n', ["1", "4"], [(3, 4)], "after a closing quote"),
        (f'1,{_T},k,"open\n2,{_T},",x"\n3,{_T},k,x\n', ["3"], [(2, 3)], "do not fit"),
        (f'1,{_T},k,"a"b\n2,{_T},k,"ab" \n', ["2"], [(2, 2)], "after a closing quote"),
        (f"1,{_T},k,a\0b\n2,{_T},k,x\n", ["2"], [(2, 2)], "zero byte"),
        (f"1,{_T},k\n2,{_T},k,x\n3,{_T},k,x,y\n", ["2"], [(2, 2), (4, 4)], "fields"),
        (f'1,{_T},k,5" disk\n2,{_T},k,x\r3,{_T},k,x\r\n\n4,{_T},k,x', ["1", "2", "3", "4"], [], ""),
        (f'1,{_T},k,"C:\\dir\\"\n2,{_T},k,"x"\n', ["1", "2"], [], ""),
    ],
)
def test_damage_is_rejected_by_its_line(
    text: str, ids: list[str], lines: Rejected, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes((_HEAD + text).encode())
    rows, rejected = read_all(path)
    assert ([row[0] for row in rows], rejected) == (ids, lines) == ([row[0] for row in read_live(path)[0]], lines)
    table = open_table(path, path, "csv", FileForm())
    assert all(reason in line.reason for each in table.batches(table.names) for line in each.bad_lines)


@pytest.mark.parametrize("title", ["Report\n", "Report of March\n\nAccount,7\n", "Report,,,\n,,,\n", "# made by x\r\n"])
def test_lines_before_the_names_are_left_out(title: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{title}{_HEAD}1,{_T},k,x\n2,{_T},k\n", newline="")
    assert read_all(path) == ([["1", _T, "k", "x"]], [(title.count("\n") + 3, title.count("\n") + 3)])
    schema = load_text("event n { i id  event_time time  k string }").schema
    (line,) = check_records(Records((path,)), schema)
    assert f"{title.count(chr(10))} lines before the names are left out" in line


def test_quotes_after_backslashes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'{_HEAD}1,{_T},k,"a \\"b\\""\n2,{_T},k,"c\\\\"\n3,{_T},k,"d\\e, f"\n')
    assert [row[3] for row in read_all(path)[0]] == ['a "b"', "c\\", "d\\e, f"]
    path.write_text(_HEAD + f"0,{_T},k,{'x' * 99}\n" * (LOOK_BYTES // 120) + f'1,{_T},k,"a \\"b\\""\n2,{_T},k,x\n')
    rows, rejected = read_all(path)  # too far down to be seen before it is read
    assert (rows[-1][0], len(rejected)) == ("2", 1)
    table = open_table(path, path, "csv", FileForm(quote='"\\'))
    assert [row["n"] for each in table.batches(table.names) for row in each.batch.to_pylist()][-2:] == ['a "b"', "x"]


def test_a_text_longer_than_a_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long_text = "line, of text\n" * 100_000
    path.write_text(f'{_HEAD}1,{_T},k,"{long_text}"\n2,{_T},k,x\n')
    assert [row[3] for row in read_all(path)[0]] == [long_text, "x"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_record_above_the_limit_is_passed_over(is_open: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines_count = RECORD_BYTES_MAX // 50 + 50_000
    with path.open("w") as file:
        file.write(f'{_HEAD}1,{_T},k,x\n2,{_T},k,"')
        file.writelines(["y" * 49 + "\n"] * lines_count)
        file.write("" if is_open else f'"\n3,{_T},k,x\n')
    rows, rejected = read_all(path)
    assert [row[0] for row in rows] == (["1"] if is_open else ["1", "3"])
    assert rejected == [(3, 3 + lines_count - (1 if is_open else 0))]


def test_blocks_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        text, _, _ = random_file(random.Random(seed))
        path = tmp_path / f"{seed}.csv"
        path.write_bytes(text.encode())
        try:
            whole = read_all(path)
        except InputError:
            continue
        for size in (1, 7, 64):
            monkeypatch.setattr(csv_records, "_BLOCK_BYTES", size)
            assert read_all(path) == whole, seed
        monkeypatch.undo()


def main(count: int) -> int:
    """Compare `count` random files. Return the number of differences."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1_000_000, 1_000_000 + count):
            if match := differences(seed, Path(folder)):
                wrong += 1
                print(seed, match)
            (Path(folder) / f"{seed}.csv").unlink(missing_ok=True)
    print(f"{count} files, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) > 0)
