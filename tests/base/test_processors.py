"""A process that is bound to some processors counts only these."""

from __future__ import annotations

import os

import pytest

from cep.base.processors import processors_count


def test_what_the_process_may_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert processors_count() == 3


def test_where_nobody_binds_a_process_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert processors_count() == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors_count() == 1
