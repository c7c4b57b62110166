"""A folder belongs to one process, and to nobody once that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cep.base.errors import StoreError
from cep.runners.embedded.commit import Commits, StoreSettings
from cep.state.claim import Claim

HOLDER = """
import sys, time
from pathlib import Path
from cep.state.claim import Claim
claim = Claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "new")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(StoreError, match=f"process {holder.pid} works in"):
            Claim(tmp_path / "new")
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=60)
    with Claim(tmp_path / "new"):
        assert (tmp_path / "new" / "OWNER").read_text() == f"{os.getpid()}\n"
        with pytest.raises(StoreError, match=f"process {os.getpid()} works in"):
            Claim(tmp_path / "new")
    Claim(tmp_path / "new").close()


def test_a_second_runner_does_not_touch_the_folder_of_the_first(tmp_path: Path) -> None:
    settings = StoreSettings(tmp_path, "rocks")
    first = Commits(settings)
    first.store.put(b"\x00\x00k", b"kept")
    with pytest.raises(StoreError, match="works in"):
        Commits(settings)
    assert first.store.get(b"\x00\x00k") == b"kept"
    first.close()
    Commits(settings).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        Claim(tmp_path / "file")
