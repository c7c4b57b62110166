"""Files that Spark creates locally have Hadoop's permissions and checksums, and start no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cep.base.private import private_files
from cep.runners.spark.local_files import set_permissions_in_java
from tests.base.test_durable import readable_by_others

pytestmark = pytest.mark.spark
CONTENT = b"offsets"


def test_files_are_made_as_before(spark: SparkSession, tmp_path: Path) -> None:
    assert set_permissions_in_java(spark)
    assert set_permissions_in_java(spark), "once more changes nothing"
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path((tmp_path / "deep" / "file").as_uri())
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def put() -> None:
        stream = files.create(path)
        stream.write(bytearray(CONTENT))
        stream.close()

    put()
    created = tmp_path / "deep" / "file"
    assert created.read_bytes() == CONTENT
    with private_files():
        (tmp_path / "plain").touch()
    assert created.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert not readable_by_others(tmp_path / "deep")
    for text, mode in (("600", 0o600), ("755", 0o755), ("444", 0o444), ("1777", 0o1777)):
        files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(text))
        assert created.stat().st_mode & 0o7777 == mode
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("600"))
    created.write_bytes(b"Offsets")
    with pytest.raises(Py4JJavaError, match="ChecksumException"):
        files.open(path).read()


def test_no_process_is_started_for_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """Linux counts the processes that a process has waited for in the page faults of its children."""
    assert set_permissions_in_java(spark)
    jvm: Any = spark.sparkContext._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def of_children() -> int:
        return int(stat.read_text().rpartition(")")[2].split()[8])

    def create_files(attempt: int) -> None:
        for number in range(20):
            path = jvm.org.apache.hadoop.fs.Path((tmp_path / f"{attempt} {number}").as_uri())
            path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).create(path).close()

    def starts_processes(attempt: int) -> bool:
        before = of_children()
        create_files(attempt)
        return of_children() != before

    # Spark may wait for a Python worker that ends during an attempt, but hardly during each.
    assert not all(map(starts_processes, range(5)))
