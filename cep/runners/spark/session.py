"""Settings → a Spark session that the replay and live runners share: local, quiet, ready for keyed state.

Tested by: tests/runners/spark/test_driver.py, tests/runners/spark/test_kafka.py
"""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from cep.base.errors import UsageError
from cep.base.secrets import SECRETS_FILE
from cep.runners.java import check_java

_LOGGING = Path(__file__).with_name("log4j2.properties")
_PYTHON = Path(__file__).with_name("python.sh")
_WORKER_PYTHON = "CEP_WORKER_PYTHON"  # the program that python.sh starts; Java and its workers inherit the variable
# The processes that are still started start faster without a helper process in between.
_FAST_SPAWN = "-Djdk.lang.Process.launchMechanism=VFORK"
# Options of the driver's Java: of the environment, because a settings file must not load code.
_JAVA_OPTIONS = "CEP_JAVA_OPTIONS"
_PACKAGE_ROOT = Path(__file__).parents[3]

# Set by spark-submit in the program that it starts, and the settings that are then its own.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_ATTEMPTS = "spark.task.maxFailures"
_SUBMITS = ("spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.extraJavaOptions", _ATTEMPTS)
# Otherwise Java looks its machine up by name, which some networks do not know.
_LOOPBACK = "SPARK_LOCAL_IP", "127.0.0.1"
# A Python that is started with `-m` looks for modules in the current folder first: a `numpy` in a folder that others
# can write to would run in each worker. Java and its workers inherit the variable.
_SAFE_PATH = "PYTHONSAFEPATH", "1"
_NOISE = re.compile(rb"(Starting )?Streaming TransformWithState\w* Python worker|WARNING: Using incubator modules")
_TRACEBACK = b"Traceback (most recent call last):"
# A worker whose work Java has received, and whose last message finds its socket closed.
_LATE_FLUSH = re.compile(
    rb'Traceback .*\n(?:  File "[^"]*pyspark/daemon\.py", .*\n(?:    .*\n)*)+BrokenPipeError: .*\n'
)
_STDERR = 2

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # No port is open to others.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.worker.reuse": "true",  # keeps compiled kernels and Kafka connections between micro-batches
    # A worker that dies says where.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # transformWithState runs on RocksDB only. A changelog per micro-batch instead of a snapshot; checkpoint
    # repartitioning can read format version 2.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A snapshot stops its micro-batch for a flush: more seldom than one in a hundred. A start reads up to as many
    # changelogs instead, some milliseconds each.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "200",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Spark 4.2 reports the snapshots that it reads to a part of itself that only a streaming query starts. A verb that
    # reads a checkpoint failed without it. The reports cause only a warning.
    "spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag": "false",
    "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag": "false",
    # A micro-batch with keyed state makes some thirty small files. On a local disk, Spark's default way of making them
    # starts some seventy processes (readlink, chmod) a micro-batch, this one few, with live.py none; both end in
    # a rename. A checkpoint directory on HDFS wants the default back, whose rename is atomic there.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A second checksum file next to the one that Hadoop's local file system already has and verifies.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Event-time timers (absence, expiry) must fire when no record comes.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # Hadoop sets the permissions of Spark's own files, independent of the process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Spark's default expression does not cover the names of key material.
    "spark.redaction.options.regex": "(?i)url|secret|password|token|access[.]?key|sasl|[.]pem|ssl[.]key",
}

# For a Java that serves this process alone: it makes its own secret, and takes no object from a process without it. On
# a cluster its operator decides.
_CLOSED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
_KEYS_OF_WORKERS = f"spark.executorEnv.{SECRETS_FILE}"  # the path alone; where the text is given, workers inherit it


def create_session(
    app_name: str, cores: int = 2, settings: Mapping[str, str] | None = None, java_options: str = ""
) -> SparkSession:
    """Start a Spark session on this machine's first `cores` cores, with as many shuffle partitions.

    Under spark-submit it runs where the options of spark-submit say. `java_options` are for the driver's Java.
    `settings` come last and win. Workers import modules from the driver's folders. A session that already runs in this
    process is returned, with the settings that can change at run time. Raises: UsageError for cores < 1, without Java
    17 or later, and if Java ends at its start. Cost: 3 to 5 s the first time.
    """
    if cores < 1:
        raise UsageError(f"cores is 1 or more, not {cores}")
    if SparkSession.getActiveSession() is None:
        check_java()
    java_options = f"{java_options} {os.environ.get(_JAVA_OPTIONS, '')}"  # the last one of a name counts
    attempts = (settings or {}).get(_ATTEMPTS, "1")  # Spark asks a local master for it
    chosen = {
        "spark.master": f"local[{cores}, {attempts}]",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_import_path()),
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {_FAST_SPAWN} {java_options}",
        **_SETTINGS,
        **({_KEYS_OF_WORKERS: os.environ[SECRETS_FILE]} if SECRETS_FILE in os.environ else {}),
        **(settings or {}),
    }
    is_local = _SUBMITTED not in os.environ and chosen["spark.master"].startswith("local")
    # The driver hands this name to its workers; the setting of the same meaning is only read by spark-submit.
    os.environ["PYSPARK_PYTHON"] = _python_of_workers() if is_local else sys.executable
    if _SUBMITTED in os.environ:
        # spark-submit has started Java, and its options say where the job runs.
        for name in _SUBMITS:
            chosen.pop(name, None)
    elif is_local:
        os.environ.setdefault(*_LOOPBACK)
        chosen = {**_CLOSED, **chosen}
    builder = SparkSession.builder.appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with nullcontext() if _has_java() else _without_noise(), _safe_path():
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if "JAVA_GATEWAY_EXITED" not in str(error):
                raise
            raise UsageError(
                "Java has ended before Spark was there; its own lines stand above. Give it memory and a folder for "
                "temporary files, and look at what SPARK_CONF_DIR and JAVA_TOOL_OPTIONS say"
            ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _has_java() -> bool:
    return SparkContext._gateway is not None  # noqa: SLF001 the one way to ask


def _python_of_workers() -> str:
    """Return the Python that Spark starts on this machine: python.sh if its pyspark is the one that is loaded here."""
    package = Path(pyspark.__file__).parent
    is_home = (package / "bin" / "spark-submit").exists() and Path(os.environ.get("SPARK_HOME", package)) == package
    if _has_java() or not is_home or not os.access(_PYTHON, os.X_OK):
        return sys.executable
    os.environ[_WORKER_PYTHON] = sys.executable
    return str(_PYTHON)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Set PYTHONSAFEPATH for a Java that starts in the block; other processes of this one keep their own choice."""
    name, value = _SAFE_PATH
    previous = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]


@contextmanager
def _without_noise() -> Iterator[None]:
    """Filter useless lines out of the standard error of a Java that starts in the block. Java inherits our pipe and
    keeps it after the block. The lines come from no logger: at every start of a query, Spark's worker for keyed state
    prints its input, and a worker that plans the query prints a traceback when Java closes their socket first."""
    reading, writing = os.pipe()
    standard_error = os.dup(_STDERR)
    os.dup2(writing, _STDERR)  # which Java inherits
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, standard_error), name="cep-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(standard_error, _STDERR)


def _pass_on(reading: int, writing: int) -> None:
    """Copy lines until the last writer ends; noise goes, and the empty line that comes after it."""
    is_after_noise = False
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", buffering=0) as out:
        for text in _whole_tracebacks(lines):
            is_noise = _NOISE.match(text) is not None or _LATE_FLUSH.fullmatch(text) is not None
            if not is_noise and not (is_after_noise and not text.strip()):
                out.write(text)
            is_after_noise = is_noise


def _whole_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Group the lines of a traceback, up to the line that names the error. Yield other lines one by one."""
    traceback = b""
    for line in lines:
        if traceback and not line.startswith(b" "):
            is_end = not line.startswith(_TRACEBACK)
            yield traceback + line if is_end else traceback
            traceback = b"" if is_end else line
        elif traceback or line.startswith(_TRACEBACK):
            traceback += line
        else:
            yield line
    if traceback:
        yield traceback


def _import_path() -> list[str]:
    """Return the folders that a worker needs before its own: our folder, and the folders given only to the driver."""
    installed = (sys.prefix, sys.base_prefix)
    given = [p for p in sys.path if not any(Path(p).is_relative_to(folder) for folder in installed)]
    driver_folders = [str(Path(p or ".").resolve()) for p in given]
    return list(dict.fromkeys([str(_PACKAGE_ROOT), *driver_folders]))
