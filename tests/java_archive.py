"""Spark's Java classes, read and verified once → an archive, with which each Java of the tests starts in half the time.

`python -m tests.java_archive` makes the archive in the user's cache folder if it is missing, or says why it cannot.
Without it Java starts as before. It is for one Java and one Spark: Java itself ignores an archive that does not match.
Tested by: every test of Spark, which starts Java with these options.
"""

import hashlib
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

# Short runs gain nothing from Java's second compiler, which takes half of their time.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def archive_path() -> Path | None:
    """Return the path of the archive for this Java and this Spark, or None if one of them is missing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    spark = find_spec("pyspark")
    if java is None or not Path(java).exists() or spark is None or spark.origin is None:
        return None
    digest = hashlib.sha256(f"{Path(java).resolve()} {Path(spark.origin).stat().st_mtime_ns} {spark.origin}".encode())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "cep" / f"java-{digest.hexdigest()[:16]}.jsa"


def java_options() -> str:
    """Return the options for each Java that the tests start, as SPARK_SUBMIT_OPTS takes them."""
    path = archive_path()
    # Java prints its reason for ignoring an archive on standard output, among the output that a test compares.
    return _OPTIONS if path is None or not path.exists() else f"{_OPTIONS} -XX:SharedArchiveFile={path} -Xlog:disable"


def _make(path: Path) -> None:
    """Run a small query and a small stream in a Java that writes its classes at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_OPTIONS} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    from cep.runners.spark.live import SPARK_SETTINGS  # noqa: PLC0415 the others that import this need no Spark
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    session = create_session("java-archive", 2, SPARK_SETTINGS)
    session.range(100).selectExpr("id % 7 as k").groupBy("k").count().collect()
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    counted = rows.groupBy("value").count()
    query = counted.writeStream.format("noop").outputMode("update").trigger(processingTime="0 seconds").start()
    while query.lastProgress is None:
        query.awaitTermination(1)
    query.stop()
    java = session.sparkContext._gateway
    session.stop()
    assert java is not None, "a session has its Java"
    java.shutdown()
    java.proc.stdin.close()
    java.proc.wait()
    part.rename(path)


if __name__ == "__main__":
    archive = archive_path()
    if archive is None:
        print("no Java, or no Spark: its tests will say so")
    elif not archive.exists():
        _make(archive)
    sys.exit(0)
