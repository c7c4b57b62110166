"""Entries as people write them, and the faults of other entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import SourceError
from cep.base.limits import LIST_ENTRY_BYTES_MAX
from cep.lists.entries import is_kind, keys_of, read_entries


def test_kinds() -> None:
    assert all(is_kind(kind) for kind in ("string", "prefix", "cidr", "int", "decimal(2)", "decimal(18)"))
    assert not any(is_kind(kind) for kind in ("", "text", "decimal", "decimal(19)", "decimal(x)", "float"))


@pytest.mark.parametrize(
    ("kind", "entries", "wrong"),
    [
        ("string", ["a", "", "b"], [1]),
        ("int", ["1", "-1", "1.5", "x", str(2**63)], [2, 3, 4]),
        ("int", ["1", str(2**63 - 1), str(-(2**63) + 1)], []),
        ("decimal(2)", ["1", "1.25", "1.255", "NaN", "1e400", "-0.1"], [2, 3, 4]),
        ("decimal(2)", ["9e999999999", "1e999999", "1e-999999999", "1"], [0, 1, 2]),
        ("cidr", ["10.0.0.0/8", "10.0.0.1/8", "::1", "x", "1.2.3.4/33", "1.2.3.4/", "fe80::%1/64"], [1, 3, 4, 5, 6]),
    ],
)
def test_an_entry_of_the_wrong_type(kind: str, entries: list[str], wrong: list[int]) -> None:
    keys, bad_entries = keys_of(entries, kind)
    assert [entry.number for entry in bad_entries] == wrong
    assert all(entry.code == "CEP802" for entry in bad_entries)
    assert len(keys) == len(entries) - len(wrong)


def test_an_entry_too_long_and_many_wrong_ones() -> None:
    _, bad_entries = keys_of(["a" * LIST_ENTRY_BYTES_MAX, "a" * (LIST_ENTRY_BYTES_MAX + 1)], "prefix")
    assert [(entry.number, entry.code) for entry in bad_entries] == [(1, "CEP803")]
    _, bad_entries = keys_of(["x"] * 25, "int")
    assert bad_entries[-1].message == "and 15 entries more"


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# blocked\nC-1\n\n  C-2 \r\nC-1\n")
    assert read_entries(tmp_path / "a.txt", "blocked").to_pylist() == ["C-1", "C-2", "C-1"]
    (tmp_path / "b.csv").write_text('added,blocked\n2026-01-01,"C-1"\n2026-01-02, C-2\n')
    assert read_entries(tmp_path / "b.csv", "blocked").to_pylist() == ["C-1", "C-2"]
    assert read_entries(tmp_path / "b.csv", "other").to_pylist() == ["2026-01-01", "2026-01-02"]
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "header.csv").write_bytes(b'\n"",,\n1,2\n')
    with pytest.raises(SourceError, match="cannot be read as a list"):
        read_entries(tmp_path / "header.csv", "blocked")
    for name in ("c.txt", "missing.txt", "missing.csv"):
        with pytest.raises(SourceError, match="cannot be read as a list"):
            read_entries(tmp_path / name, "blocked")
