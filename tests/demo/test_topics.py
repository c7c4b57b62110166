"""Topics in memory keep the contract of a live source."""

from __future__ import annotations

import threading

from cep.demo.topics import MemoryTopics

RECORDS = [(f"k{n % 7}", f"{n}".encode()) for n in range(50)]


def topics() -> MemoryTopics:
    memory_topics = MemoryTopics()
    memory_topics.create("t")
    return memory_topics


def test_every_record_comes_once_and_those_of_a_key_in_order() -> None:
    memory_topics = topics()
    memory_topics.send("t", RECORDS)
    reader = memory_topics.reader("t")
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
    memory_topics = topics()
    memory_topics.send("t", RECORDS)
    reader, again = memory_topics.reader("t"), memory_topics.reader("t")
    reader.poll(8, 0.0)
    again.seek(reader.positions())
    first, second = reader.poll(100, 0.0), again.poll(100, 0.0)
    assert [chunk.values for chunk in first] == [chunk.values for chunk in second]


def test_whoever_waits_is_woken() -> None:
    memory_topics = topics()
    reader = memory_topics.reader("t")
    assert reader.poll(1, 0.0) == []
    sender = threading.Thread(target=memory_topics.send, args=("t", [("k", b"v")]))
    sender.start()
    (chunk,) = reader.poll(4, 30.0)
    sender.join()
    assert chunk.values == [b"v"]
