"""Membership of each kind of list against plain Python; a changing list against a changing set."""

from __future__ import annotations

import ipaddress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.lists import content as module
from cep.lists.content import Content
from cep.lists.entries import keys_of

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
