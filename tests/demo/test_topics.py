"""Topics in memory keep the contract of a live source."""

from __future__ import annotations

import threading

from cep.demo.topics import MemoryTopics

RECORDS = [(f"k{n % 7}", f"{n}".encode()) for n in range(50)]


def topics() -> MemoryTopics:
    made = MemoryTopics()
    made.create("t")
    return made


def test_every_record_comes_once_and_those_of_a_key_in_order() -> None:
    made = topics()
    made.send("t", RECORDS)
    reader = made.reader("t")
    values: list[int] = []
    while chunks := reader.poll(8, 0.0):
        assert sum(map(len, chunks)) <= 8
        values += [int(value) for chunk in chunks for value in chunk.values]
    assert sorted(values) == list(range(50))
    for key in range(7):
        assert [value for value in values if value % 7 == key] == list(range(key, 50, 7))
    assert not any(reader.behind().values())
    assert sum(reader.positions().values()) == 50


def test_it_goes_on_behind_positions() -> None:
    made = topics()
    made.send("t", RECORDS)
    reader, again = made.reader("t"), made.reader("t")
    reader.poll(8, 0.0)
    again.seek(reader.positions())
    first, second = reader.poll(100, 0.0), again.poll(100, 0.0)
    assert [chunk.values for chunk in first] == [chunk.values for chunk in second]


def test_whoever_waits_is_woken() -> None:
    made = topics()
    reader = made.reader("t")
    assert reader.poll(1, 0.0) == []
    sender = threading.Thread(target=made.send, args=("t", [("k", b"v")]))
    sender.start()
    (chunk,) = reader.poll(4, 30.0)
    sender.join()
    assert chunk.values == [b"v"]
