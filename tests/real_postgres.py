"""A PostgreSQL server for tests: one process on a free port of the loopback interface, with its own folder.

PostgreSQL refuses to run as root. Root therefore starts it as the user `postgres` or `nobody`.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0


PROGRAMS = ("initdb", "postgres")
IS_THERE = all(shutil.which(name) for name in PROGRAMS)


class RealPostgres:
    """One server. `address` and the rows stay over stop and start."""

    def __init__(self) -> None:
        self._initdb, self._postgres = (str(shutil.which(name)) for name in PROGRAMS)
        self._as: dict[str, Any] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="cep-postgres-"))
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres" if "postgres" in {u.pw_name for u in pwd.getpwall()} else "nobody")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"postgresql://cep@127.0.0.1:{self.port}/postgres"
        words = [self._initdb, "-D", str(self._folder / "data"), "-A", "trust", "-U", "cep", "--no-sync"]
        subprocess.run(words, check=True, capture_output=True, cwd=self._folder, **self._as)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        words = [
            self._postgres, "-D", str(self._folder / "data"), "-p", str(self.port), "-k", str(self._folder),
            "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, **self._as
            )
        give_up_s = time.monotonic() + TIMEOUT_S
        ready = self._folder / "data" / "postmaster.pid"
        while not (ready.exists() and "ready" in ready.read_text()):
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < give_up_s, (self._folder / "log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop without waiting for clients: their connections are cut."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        """End the server and drop its rows."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
