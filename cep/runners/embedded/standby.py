"""The changelog of a job that another process runs → a nearly current store here, until this process has the lease.

    lease elsewhere   follow the changelog into FOLDER/store.partial, a few times a second
    lease here        end; opening.py fences the previous owner, reads the rest of the changelog, and the job continues

If the brokers are unreachable, the standby waits: then no process works, and none takes over.
Tested by: tests/runners/embedded/test_standby.py, tests/cli/test_standby.py
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cep.base.errors import SourceError
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.opening import PART, StoreSettings, followed_folder
from cep.runners.live_checkpoint import lock_checkpoint
from cep.state.checkpoints import BESIDE

_FOLLOW_S = 0.25


def stand_by(
    settings: StoreSettings, folder: Path, changelog: Changelog, has_lease: Callable[[], bool], stop: threading.Event,
    followed: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Follow the changelog until this process has the lease, or `stop` is set.

    `followed` is called with the offset up to which the store is complete. Raises: UsageError if another process has
    the folder, or if the topic is not a changelog of this job; SinkError if the lease is refused; StateError.
    """
    partial = followed_folder(folder)
    with lock_checkpoint(folder):
        shutil.rmtree(partial, ignore_errors=True)
        with settings.open(partial / PART) as store:
            while not (has_lease() or stop.is_set()):
                with suppress(SourceError):  # the watch says that no broker answers
                    followed(changelog.follow(store, partial / BESIDE))
                stop.wait(_FOLLOW_S)
