"""Apicurio's schema registry for tests: one process that keeps its schemas in memory, on a free port of loopback.

Its archive comes through Maven once and stays in the user's cache folder, as the broker's jars do (real_kafka.py). It
answers under `/apis/ccompat/v7` as Confluent's registry does. It needs seconds to start, and Java 17.
Tested by: tests/sources/registry/test_real_registry.py
"""

import contextlib
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.real_kafka import NoBrokerError, fetched

VERSION = "3.0.9"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cep.tests</groupId><artifactId>registry</artifactId><version>1</version>
</project>
"""
_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S = 120.0


@contextlib.contextmanager
def open_registry() -> Iterator[str]:
    """Yield the address at which clients reach the registry. Raises: NoBrokerError if it is not available."""
    java = shutil.which("java")
    if java is None:
        raise NoBrokerError("no java on the path")
    archives = fetched(f"apicurio-{VERSION}", _POM, ("dependency:copy", f"-Dartifact={_ARTIFACT}"))
    with tempfile.TemporaryDirectory(prefix="cep-registry-") as work:
        folder = Path(work)
        with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        (program,) = folder.glob("*-runner.jar")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        places = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [java, *_JAVA_OPTIONS, *places, "-jar", str(program)], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait_until_it_answers(process, url, folder / "log")
            yield url
        finally:
            process.kill()
            process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/subjects", timeout=5):
            return
        time.sleep(0.2)
    raise NoBrokerError(f"Apicurio's registry does not start: {log.read_text(errors='replace')[-1_000:]}")
