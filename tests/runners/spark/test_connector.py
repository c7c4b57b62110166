"""The Kafka connector of Spark's JVM gives the same as a replay; a job may change over to our own reader."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import orjson
import pyspark
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import UsageError
from cep.runners.spark.connector import java_settings
from cep.runners.spark.live import LiveSettings, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import JVM, TopicSource
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import read_alerts
from tests.real_kafka import KafkaCluster, NoBrokerError, fetched
from tests.runners.spark.live_cases import ROOT, make_job, payments, replayed, rows, rules, write_file
from tests.runners.spark.live_kafka import mix, send
from tests.spark_versions import on_this_spark

LATENESS_MS = 90_000
DAY_MS = 86_400_000
WAIT_S = 300
PARTITIONS = 4  # also of the mock
# The newest connector in Maven's central repository for this Spark, without the parts that Spark includes.
_CONNECTOR = "4.1.2" if pyspark.__version__.startswith("4.1.") else "4.2.0"
_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", _CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cep.tests</groupId><artifactId>connector</artifactId><version>1</version>
  <dependencies>{"".join(_DEPENDENCY.format(*artifact) for artifact in _ARTIFACTS)}</dependencies>
</project>
"""


@pytest.fixture(scope="module")
def connector() -> str:
    """Return the paths of the connector's jars."""
    try:
        return ",".join(map(str, sorted(fetched(f"spark-kafka-{_CONNECTOR}", _POM).glob("*.jar"))))
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error  # if Maven cannot reach its repository


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_that_changes_over(
    spark: SparkSession, kafka_broker: KafkaCluster, connector: str, tmp_path: Path
) -> None:
    lines, topic = payments(61), f"connector-{uuid.uuid4().hex}"
    kafka_broker.create(topic, PARTITIONS)
    stream = mix(lines, 9, PARTITIONS, LATENESS_MS)
    (tmp_path / "control").mkdir()
    (tmp_path / "cep.toml").write_text(f'[spark]\nconf = {{ "spark.jars" = {json.dumps(connector)} }}\n')
    words = [
        "live", "--conf", str(tmp_path / "cep.toml"), "--rules", str(ROOT / "rules"), "--control",
        str(tmp_path / "control"), "--bootstrap-servers", kafka_broker.address, "--topic", topic, "--lateness",
        f"{LATENESS_MS} ms", "--dedup", "1 d", "--checkpoint", str(tmp_path / "job"), "--alerts",
        str(tmp_path / "alerts"), "--key-groups", "4", "--available-now",
    ]  # fmt: skip
    half = len(stream.second) // 2
    for records, which in ((stream.first, "spark"), (stream.second[:half], "spark"), (stream.second[half:], "client")):
        send(kafka_broker, topic, records)
        run(words, which)
    rules_by_id = rules()
    job = replace(make_job(rules_by_id.values(), LATENESS_MS), dedup_ms=DAY_MS)
    (tmp_path / "clean").mkdir()
    write_file(tmp_path / "clean" / "events.jsonl", stream.clean, 0)
    expected_alerts = [
        orjson.loads(line) for line in rows(replayed(spark, tmp_path / "clean", job, rules_by_id.values()).alerts)
    ]
    assert expected_alerts
    alerts = read_alerts(tmp_path / "alerts")
    assert sorted(map(orjson.dumps, alerts)) == sorted(map(orjson.dumps, expected_alerts))


def run(words: list[str], connector: str) -> None:
    """Start the job once, in a process that has the connector's jars from the beginning."""
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
    process = subprocess.run(
        [*command, "--connector", connector], env=on_this_spark(), capture_output=True,
        text=True, check=False, timeout=WAIT_S, cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr


def test_settings_of_librdkafka_in_the_words_of_java() -> None:
    client_settings = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": 'a"b',
             "sasl.password": "c\\d", "ssl.ca.location": "/ca.pem", "ssl.keystore.location": "/c.p12",
             "ssl.keystore.password": "p"}  # fmt: skip
    assert java_settings(client_settings) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/c.p12",
        "ssl.keystore.password": "p",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a\\"b" password="c\\\\d";',
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.key.password": "hidden"}, "no counterpart of librdkafka's ssl.key.password"),
        ({"sasl.username": "u", "sasl.password": "hidden", "sasl.mechanism": "GSSAPI"}, "not 'GSSAPI'"),
    ],
)
def test_what_has_no_counterpart_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        java_settings(settings)
    assert "hidden" not in str(caught.value)


@pytest.mark.spark
@pytest.mark.parametrize(("records_max", "message"), [(None, "spark.jars.packages"), (10, "knows no max_records")])
def test_a_job_that_cannot_start_says_why(
    spark: SparkSession, tmp_path: Path, records_max: int | None, message: str
) -> None:
    """The session of the tests has no connector."""
    rules_by_id = rules()
    topic = TopicSource("127.0.0.1:9", "t", records_max, connector=JVM)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    settings = LiveSettings(make_job(rules_by_id.values()), initial, topic, None, tmp_path / "job" / "query")
    output = LiveOutput(tmp_path / "job", DeadLetterFiles(tmp_path / "letters"), [], lambda _: None)
    with pytest.raises(UsageError, match=message):
        start_live(spark, settings, output)
