"""A settings file of a repository cannot make a verb load code, run a command or carry a secret."""

from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.cli.main import main
from cep.model.settings import read_settings

RUNS_CODE = [
    "plugin.library.paths", "sasl.kerberos.kinit.cmd", "sasl.kerberos.principal", "sasl.kerberos.keytab",
    "ssl.engine.location", "ssl.engine.id", "ssl.providers", "error_cb", "oauth_cb", "logger", "unknown.name",
    "Plugin.Library.Paths", " plugin.library.paths", "enable.sasl.oauthbearer.unsecure.jwt",
]  # fmt: skip
SPARK_CODE = [
    "spark.jars", "spark.jars.packages", "spark.driver.extraJavaOptions", "spark.driver.extraClassPath",
    "spark.plugins", "spark.extraListeners", "spark.sql.extensions", "spark.sql.queryExecutionListeners",
    "spark.pyspark.python", "spark.submit.pyFiles", "spark.executor.extraJavaOptions", "spark.sql.hive.metastore.jars",
    "spark.hadoop.net.topology.script.file.name", "spark.hadoop.fs.file.impl", "spark.network.crypto.enabled",
    "spark.authenticate", "spark.driver.defaultJavaOptions",
]  # fmt: skip


def refused(table: str, tmp_path: Path) -> str:
    (tmp_path / "cep.toml").write_text(table)
    with pytest.raises(UsageError) as error:
        read_settings(tmp_path / "cep.toml", {})
    return str(error.value)


@pytest.mark.parametrize("name", RUNS_CODE)
def test_a_setting_of_the_kafka_client_that_is_not_listed_is_refused(name: str, tmp_path: Path) -> None:
    assert f"`{name}` is none of the settings" in refused(f'[kafka.client]\n"{name}" = "/tmp/x"\n', tmp_path)


@pytest.mark.parametrize("value", ["GSSAPI", "gssapi", " GSSAPI "])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_mechanism_that_runs_a_command_is_refused(name: str, value: str, tmp_path: Path) -> None:
    assert "runs `kinit`" in refused(f'[kafka.client]\n"{name}" = "{value}"\n', tmp_path)
    assert "name one" in refused('[kafka.client]\n"security.protocol" = "SASL_SSL"\n', tmp_path)


@pytest.mark.parametrize("name", SPARK_CODE)
def test_a_setting_of_spark_that_loads_code_is_refused(name: str, tmp_path: Path) -> None:
    assert f"`{name}` is none of the settings" in refused(f'[spark.conf]\n"{name}" = "x"\n', tmp_path)


def test_usual_settings_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "w")
    (tmp_path / "cep.toml").write_text(
        '[kafka.client]\n"security.protocol" = "SASL_SSL"\n"sasl.mechanism" = "SCRAM-SHA-512"\n'
        '"sasl.username" = "cep"\n"sasl.password" = "env:WORD"\n"message.timeout.ms" = "500"\n'
        '"ssl.ca.location" = "/etc/ca.pem"\n"client.rack" = "a"\n"socket.keepalive.enable" = "true"\n'
        '"fetch.max.bytes" = "1000000"\n"queued.max.messages.kbytes" = "1000"\n'
        '[spark.conf]\n"spark.driver.memory" = "4g"\n"spark.sql.shuffle.partitions" = "2"\n'
        '"spark.hadoop.fs.s3a.endpoint" = "http://s3"\n'
    )
    settings = read_settings(tmp_path / "cep.toml", {})
    assert settings.kafka.client_settings()["sasl.password"] == "w"
    assert settings.spark.conf["spark.driver.memory"] == "4g"


@pytest.mark.parametrize(
    "table",
    [
        '[kafka.client]\n"sasl.password" = "t0p-word"', '[kafka.client]\n"ssl.key.pem" = "t0p-word"',
        '[kafka.client]\n"sasl.oauthbearer.client.secret" = "t0p-word"',
        '[events.registry]\n"basic.auth.user.info" = "ann:t0p-word"',
        '[events.registry]\n"bearer.auth.token" = "t0p-word"',
        '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "t0p-word"',
    ],
)  # fmt: skip
def test_a_secret_in_the_file_is_refused_and_not_shown(table: str, tmp_path: Path) -> None:
    message = refused(table, tmp_path)
    assert "is a secret" in message
    assert "t0p-word" not in message


def test_an_unlisted_setting_of_the_registry_is_refused(tmp_path: Path) -> None:
    table = '[events.registry]\n"bearer.auth.custom.provider.function" = "os.system"'
    assert "is none of the settings of the client of a schema registry" in refused(table, tmp_path)


def test_a_verb_that_only_shows_what_it_would_send_loads_no_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cep.toml").write_text(
        '[kafka]\nbootstrap_servers = "x:1"\n[kafka.client]\n"plugin.library.paths" = "/tmp/x"'
    )
    words = ["rules", "publish", "--rules", str(tmp_path), "--conf", str(tmp_path / "cep.toml"), "--dry-run"]
    assert main(words) == Exit.USAGE
    assert "`plugin.library.paths` is none of the settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "off",
    ['"enable.ssl.certificate.verification" = "false"', '"enable.ssl.certificate.verification" = "False"',
     '"ssl.endpoint.identification.algorithm" = "none"'],
)  # fmt: skip
def test_a_check_of_certificates_that_is_switched_off_is_told(
    off: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, expected in ((off, True), ('"enable.ssl.certificate.verification" = "true"', False)):
        (tmp_path / "cep.toml").write_text(f"[kafka.client]\n{line}\n")
        assert main(["settings", "--check", str(tmp_path / "cep.toml")]) == 0
        assert ("warning: " in capsys.readouterr().err) is expected
