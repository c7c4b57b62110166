"""Lists: the content of each kind, sets of keys, entries as people write them, and sets by name over time."""

import ipaddress
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.base.errors import SourceError, StateCorruptError, StateFormatError, StoreError
from cep.base.limits import LIST_ENTRY_BYTES_MAX
from cep.kernels.records import MemberSet
from cep.kernels.text.members import _contains, distinct
from cep.lists import store as module
from cep.lists.entries import Keys, is_kind, keys_of, read_entries
from cep.lists.members import EMPTY, KeySet, build, choose_keys, join_keys, map_set_file, write
from cep.lists.store import (
    NO_ENTRIES,
    Content,
    FixedVersion,
    ListStore,
    ListVersion,
    fixed,
    name_of,
    spans,
    timeline_of,
)

# Membership of each kind of list against plain Python; a changing list against a changing set.

DIGITS = st.text(st.sampled_from("0123"), min_size=1, max_size=7)
OCTET = st.sampled_from(["0", "1", "10", "127", "128", "192", "255", "01", "256", ""])
HEXTET = st.sampled_from(["0", "1", "ff", "2001", "db8", "FFFF", "fe80", "", "", "10000", "g"])


def listed(entries: list[str], kind: str) -> Content:
    keys, wrong = keys_of(entries, kind)
    assert not wrong
    return Content(kind).changed("replace", keys)


def within(content: Content, texts: list[str]) -> list[bool | None]:
    values, none = content.texts_within(pa.array(texts, pa.large_string()))
    return [None if n else bool(v) for v, n in zip(values, none, strict=True)]


@given(st.lists(DIGITS, max_size=20), st.lists(DIGITS, max_size=20))
def test_prefixes(entries: list[str], values: list[str]) -> None:
    expected = [any(text.startswith(entry) for entry in entries) for text in values]
    assert within(listed(entries, "prefix"), values) == expected


def test_prefixes_of_texts_beyond_ascii() -> None:
    expected = {"été": True, "e": False, "日": False, "日本語": True, "本": False}
    assert within(listed(["é", "日本"], "prefix"), list(expected)) == list(expected.values())


@st.composite
def address(draw: st.DrawFn) -> str:
    """Draw an address in any spelling, sometimes another text."""
    four = ".".join(draw(st.lists(OCTET, min_size=4, max_size=4) if draw(st.booleans()) else st.lists(OCTET)))
    kind = draw(st.sampled_from(["four", "six", "six", "six", "mixed", "whole4", "whole6", "text"]))
    if kind == "four":
        return four
    if kind == "whole4":
        return str(draw(st.ip_addresses(v=4)))
    if kind == "whole6":
        drawn_address = draw(st.ip_addresses(v=6))
        return str(drawn_address.exploded if draw(st.booleans()) else drawn_address.compressed)
    if kind == "text":
        return draw(st.text(st.sampled_from("0123456789abcdef:./%"), max_size=12))
    six = ":".join(draw(st.lists(HEXTET, min_size=2, max_size=10)))
    return six + draw(st.sampled_from(["", "", "%eth0", "%", "%a%b", "%a/b"])) if kind == "six" else f"{six}:{four}"


@st.composite
def network(draw: st.DrawFn) -> str:
    drawn_address = draw(st.ip_addresses())
    length = draw(st.integers(0, drawn_address.max_prefixlen))
    return str(ipaddress.ip_network(f"{drawn_address}/{length}", strict=False))


def python_within(text: str, networks: list[str]) -> bool | None:
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return any(parsed in ipaddress.ip_network(entry) for entry in networks)


@given(st.lists(network(), max_size=8), st.lists(address(), max_size=12), st.data())
@example(["::/0"], ["::", "1::", "::1", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", ":::", "1:2:3:4:5:6:7:8:9"], None)
@example(["::ffff:0:0/96"], ["::ffff:1.2.3.4", "1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4"], None)
def test_networks(networks: list[str], values: list[str], data: st.DataObject | None) -> None:
    if data is not None:  # and addresses near the networks
        inside = [ipaddress.ip_network(entry) for entry in networks]
        values = values + [str(n[0]) for n in inside] + [str(n[-1]) for n in inside]
        values += [str(n[-1] + 1) for n in inside if int(n[-1]) + 1 < 2**n.max_prefixlen]
    assert within(listed(networks, "cidr"), values) == [python_within(text, networks) for text in values]


WRITTEN = st.tuples(address(), st.sampled_from(["", "/8", "/64", "/0", "/129"])).map("".join)


@given(st.lists(WRITTEN, max_size=8))
def test_a_network_is_what_python_takes_for_one(entries: list[str]) -> None:
    def is_network(text: str) -> bool:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            return False
        return "%" not in text  # a scope belongs to one machine

    _, wrong = keys_of(entries, "cidr")
    assert {entry.number for entry in wrong} == {n for n, text in enumerate(entries) if not is_network(text)}


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1)), st.lists(st.integers(-5, 5)))
def test_numbers(entries: list[int], numbers: list[int]) -> None:
    content = listed([str(entry) for entry in entries], "int")
    values = [*numbers, *entries]
    assert content.numbers_within(np.array(values, np.int64)).tolist() == [value in entries for value in values]


def test_decimals_are_scaled() -> None:
    content = listed(["12.5", "-0.01", "3"], "decimal(2)")
    values = [Decimal("12.50"), Decimal("-0.01"), Decimal(3), Decimal("0.01")]
    assert content.numbers_within(np.array([int(v * 100) for v in values], np.int64)).tolist() == [1, 1, 1, 0]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "replace"]), st.lists(DIGITS, max_size=5)), max_size=8),
    st.integers(0, 4),
)
def test_a_list_that_changes(changes: list[tuple[module.ChangeKind, list[str]]], changes_max: int) -> None:
    content, plain = Content("prefix"), set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LIST_CHANGES_MAX", changes_max)
        for change, entries in changes:
            content = content.changed(change, keys_of(entries, "prefix")[0])
            plain = {"replace": set(entries), "add": plain | set(entries), "remove": plain - set(entries)}[change]
            assert len(content) == len(plain)
            assert content.digest == listed(sorted(plain), "prefix").digest
            texts = [*plain, "0", "12", "301", "2222222"]
            assert within(content, texts) == [any(a.startswith(entry) for entry in plain) for a in texts]


# A set of keys against Python's own; its file.

TEXTS = st.lists(st.text(st.sampled_from("ab4é"), min_size=1, max_size=4), max_size=40)


def keys(texts: list[str]) -> Keys:
    good_keys, wrong = keys_of(texts, "string")
    assert not wrong
    return good_keys


@given(TEXTS, TEXTS)
def test_a_set_has_what_was_put_in(entries: list[str], values: list[str]) -> None:
    members = build(keys(entries), "string")
    assert len(members) == len(set(entries))
    assert members.has(keys(values)).tolist() == [text in entries for text in values]
    assert not EMPTY.has(keys(values)).any()


@given(TEXTS, TEXTS, st.integers(1, 3))
def test_keys_that_are_made_to_collide(entries: list[str], values: list[str], hashes_count: int) -> None:
    """Crafted keys that share a few hashes: the set has each once, in order, and all of them."""
    given_keys, many = keys(entries), keys([f"C-{number}" for number in range(40)])
    both = join_keys(given_keys, many)
    hashes = np.array([len(text) % hashes_count for text in [*entries, *(f"C-{n}" for n in range(40))]], np.uint64)
    order = np.argsort(hashes, kind="stable")
    order = order[: distinct(order, hashes, both.offsets, both.data)]
    texts = [bytes(both.data[both.offsets[n] : both.offsets[n + 1]]) for n in order]
    every = {*entries, *(f"C-{n}" for n in range(40))}
    assert texts == sorted({text.encode() for text in every}, key=lambda t: (len(t.decode()) % hashes_count, len(t), t))
    distinct_keys = Keys(np.cumsum([0, *map(len, texts)]), np.frombuffer(b"".join(texts), np.uint8))
    members = MemberSet(np.array([0, len(texts)]), hashes[order], distinct_keys.offsets, distinct_keys.data)
    for text in [*values, *every, "D-7"]:
        data = np.frombuffer(text.encode(), np.uint8)
        assert _contains(members, np.uint64(len(text) % hashes_count), data, 0, len(data)) == (text in every)


def test_the_empty_set_is_that_of_no_keys() -> None:
    built = build(keys([]), "string")
    assert [array.tolist() for array in EMPTY.members] == [array.tolist() for array in built.members]
    assert [array.dtype for array in EMPTY.members] == [array.dtype for array in built.members]
    assert (EMPTY.lengths.tolist(), EMPTY.digest) == (built.lengths.tolist(), built.digest)


@given(TEXTS)
def test_the_digest_is_of_the_entries_alone(entries: list[str]) -> None:
    one, other = build(keys(entries), "string"), build(keys(entries[::-1] + entries[:3]), "string")
    assert one.digest == other.digest
    assert build(keys([*entries, "zzzzz"]), "string").digest != one.digest


@given(TEXTS, TEXTS)
def test_keys_are_joined_and_chosen(one: list[str], other: list[str]) -> None:
    both = join_keys(keys(one), keys(other))
    is_chosen = np.arange(len(both)) % 2 == 0
    assert build(both, "string").digest == build(keys(one + other), "string").digest
    assert build(choose_keys(both, is_chosen), "string").digest == build(keys((one + other)[::2]), "string").digest


def test_a_file_is_the_set(tmp_path: Path) -> None:
    texts = [f"C-{number}" for number in range(10_000)]
    members = build(keys(texts), "string")
    write(tmp_path / "lists" / "a", members)
    file_keys = map_set_file(tmp_path / "lists" / "a")
    assert file_keys.has(keys(texts)).all()
    assert not file_keys.has(keys(["C-10000", "C-", "c-1"])).any()
    assert file_keys.digest == members.digest
    assert [path.name for path in (tmp_path / "lists").iterdir()] == ["a"]


@pytest.mark.parametrize("start", [b"", b"x"])
@pytest.mark.parametrize("end", [-1, 0, 20])
def test_a_damaged_file_is_told(tmp_path: Path, start: bytes, end: int) -> None:
    write(tmp_path / "a", build(keys(["x", "yy"]), "string"))
    (tmp_path / "a").write_bytes(start + (tmp_path / "a").read_bytes()[:end])
    with pytest.raises(StateCorruptError, match="restore it"):
        map_set_file(tmp_path / "a")


def test_a_changed_bit_is_told_and_a_later_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, build(keys([f"C-{number}" for number in range(20)]), "string"))
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises((StateCorruptError, StateFormatError)):
            map_set_file(path)
    path.write_bytes(good[:7] + b"3" + good[8:])
    with pytest.raises(StateFormatError, match=r"list .* has format 3, this build reads 2; start with the build that"):
        map_set_file(path)


def test_a_file_without_a_checksum_is_refused_by_its_format(tmp_path: Path) -> None:
    write(tmp_path / "a", build(keys(["x", "yy"]), "string"))
    written = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(b"CEPLIST1" + written[8:56] + written[64:])
    with pytest.raises(StateFormatError, match="has format 1, this build reads 2"):
        map_set_file(tmp_path / "a")


def test_a_missing_file_and_a_folder_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="cannot be read"):
        map_set_file(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "file" / "a", EMPTY)


# Entries as people write them, and the faults of other entries.


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
        ("decimal(2)", ["9e999999999", "1e999999", "1e-999999999", "1", f"1.{'0' * 33}1"], [0, 1, 2, 4]),
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
    (tmp_path / "B.CSV").write_text("blocked\nC-1\n")
    assert read_entries(tmp_path / "B.CSV", "blocked").to_pylist() == ["C-1"]
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "header.csv").write_bytes(b'\n"",,\n1,2\n')
    with pytest.raises(SourceError, match="cannot be read as a list"):
        read_entries(tmp_path / "header.csv", "blocked")
    for name in ("c.txt", "missing.txt", "missing.csv"):
        with pytest.raises(SourceError, match="cannot be read as a list"):
            read_entries(tmp_path / name, "blocked")


# Sets by name in a folder and in memory; the version that an event sees.


def members(*texts: str) -> KeySet:
    return build(keys_of(list(texts), "string")[0], "string")


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_store_keeps_each_set_once(tmp_path: Path, is_folder: bool) -> None:
    store = ListStore(tmp_path if is_folder else None)
    store.put("one", lambda: members("a"))
    store.put("one", lambda: pytest.fail("made again"))
    store.put("two", lambda: members("b"))
    assert store.get("one") is store.get("one")
    assert len(store.get(NO_ENTRIES)) == 0
    assert store.get("two").has(keys_of(["a", "b"], "string")[0]).tolist() == [False, True]
    store.keep_only(["two"])
    with pytest.raises((StateCorruptError, KeyError)):
        store.get("one")
    store.put("one", lambda: members("a", "c"))
    assert len(store.get("one")) == 2


def test_a_name_tells_its_parts_apart() -> None:
    assert name_of("ab", "c") != name_of("a", "bc")
    assert name_of("a", b"b") == name_of("a", "b")


@given(st.lists(st.integers(0, 9), unique=True, max_size=5), st.lists(st.integers(-1, 10), max_size=10))
def test_an_event_sees_the_last_version_that_has_started(starts: list[int], times: list[int]) -> None:
    timeline = [FixedVersion(start, Content("int")) for start in sorted(starts)]
    content_by_row: dict[int, object] = {}
    for content, rows in spans(timeline, np.array(times, np.int64)):
        content_by_row.update(dict.fromkeys(np.arange(len(times))[rows].tolist(), content))
    for row, time in enumerate(times):
        started = [version for version in timeline if version.from_ms <= time]
        assert content_by_row[row] is (started[-1].content if started else None)


def test_versions_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    store = ListStore(tmp_path)
    store.put("base", lambda: members("a", "b"))
    store.put("added", lambda: members("c"))
    store.put("removed", lambda: members("a"))
    version = ListVersion(0, "string", store, "base", "added", "removed")
    assert version.content is version.content
    assert (len(version.content), version.content.kind) == (2, "string")
    gone = ListVersion(0, "string", store, "gone")
    with pytest.raises(StateCorruptError):
        _ = gone.content


def test_lists_by_name() -> None:
    lists = {("blocked", "string"): fixed(["a"], "string")}
    assert timeline_of(lists, "blocked", "string") is lists["blocked", "string"]
    assert timeline_of(lists, "blocked", "int") == ()
    in_place = timeline_of(lists, '["x", "y"]', "string")
    assert len(in_place[0].content) == 2
