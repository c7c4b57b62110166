"""Prometheus and promtool for tests: from the path, otherwise from Debian's package.

As root on Debian the package is downloaded once (19 MB) and unpacked into the user's cache folder, outside of the
repository; nothing is installed. If that fails too, `open_tools` says why, and so do a run's last lines.
Tested by: tests/cli/test_monitor.py
"""

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = "prometheus"
_FETCH_S = 120.0


class NoPrometheusError(Exception):
    """Prometheus is not available here; the message says why."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The paths of both programs, and where they come from."""

    prometheus: Path
    promtool: Path
    description: str


@functools.cache
def open_tools() -> Tools:
    """Find or fetch both programs. Raises: NoPrometheusError."""
    on_path = [shutil.which(name) for name in ("prometheus", "promtool")]
    if all(on_path):
        return Tools(Path(str(on_path[0])), Path(str(on_path[1])), "the Prometheus on the path")
    binaries = _fetched() / "usr" / "bin"
    return Tools(binaries / "prometheus", binaries / "promtool", "the Prometheus of the distribution's package")


def _fetched() -> Path:
    """Return the folder of the unpacked package; fetch it if it is missing. Raises: NoPrometheusError."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "cep" / _PACKAGE
    if folder.is_dir():
        return folder
    if os.geteuid() != 0 or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoPrometheusError("no prometheus and promtool on the path, and this is no root on Debian to fetch them")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        _done(["apt-get", "download", _PACKAGE], Path(work))
        packages = list(Path(work).glob("*.deb"))
        if len(packages) != 1:
            raise NoPrometheusError(f"apt-get has brought {len(packages)} packages for {_PACKAGE}")
        _done(["dpkg", "-x", packages[0].name, "unpacked"], Path(work))
        try:
            (Path(work) / "unpacked").replace(folder)
        except OSError:
            assert folder.is_dir(), "another process has put it there meanwhile"
    return folder


def _done(command: list[str], folder: Path) -> None:
    try:
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_S)
    except subprocess.TimeoutExpired as error:
        raise NoPrometheusError(f"{command[0]} has not ended in {_FETCH_S:.0f} s") from error
    if process.returncode != 0:
        raise NoPrometheusError(f"{command[0]} ended with {process.returncode}: {process.stderr[-300:]}")
