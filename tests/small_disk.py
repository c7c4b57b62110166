"""A disk that a test can fill: a real file system of its own, or a limit of the kernel on the size of files.

Mounting takes root. Without root, RLIMIT_FSIZE makes every write after a file's first bytes fail with EFBIG instead of
ENOSPC: the writer sees a refusal of the kernel either way.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_FILLER = "filler"
_TRIES_MAX = 100


@dataclass(frozen=True)
class SmallDisk:
    """A folder on the disk; `is_mounted` says which kind of disk it is."""

    folder: Path
    is_mounted: bool

    def fill(self, left_bytes: int) -> None:
        """Leave room for few bytes from now on: on the disk, or in any one file."""
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return
        self.free()
        with (self.folder / _FILLER).open("wb") as file:
            for _ in range(_TRIES_MAX):  # another process may write in between
                size = max(1, shutil.disk_usage(self.folder).free - left_bytes)
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, size)
                    return
        raise AssertionError("the disk does not hold still")

    def free(self) -> None:
        if self.is_mounted:
            (self.folder / _FILLER).unlink(missing_ok=True)
        else:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Yield a disk of this size at the folder, which is created."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    disk = SmallDisk(folder, subprocess.run(command, capture_output=True, check=False).returncode == 0)
    try:
        yield disk
    finally:
        disk.free()
        if disk.is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
