"""Examples for operators: settings that can be used, a manifest that fits them, a job under spark-submit."""

import configparser
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import orjson
import pytest
import yaml

from cep.base.exits import MEANINGS
from cep.base.limits import STOP_MS_MAX
from cep.cli import live, run
from cep.cli.verbs import Parser
from cep.model.settings import read_settings

ROOT = Path(__file__).parents[2]
WAIT_S = 300
PODS = ("kubernetes.yaml", "kubernetes-run.yaml")


@pytest.mark.parametrize(
    ("manifest", "settings_file", "verb"),
    [("kubernetes.yaml", "cep.toml", live), ("kubernetes-run.yaml", "cep-run.toml", run)],
)
def test_a_manifest_runs_the_job_of_the_settings(
    manifest: str, settings_file: str, verb: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "demo" / settings_file).read_text()
    config, job = yaml.safe_load_all((ROOT / "demo" / manifest).read_text())
    assert (config["kind"], job["kind"], job["spec"]["replicas"]) == ("ConfigMap", "StatefulSet", 1)
    assert config["data"] == {"cep.toml": text}
    template = job["spec"]["template"]
    assert job["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod, claims = template["spec"], job["spec"]["volumeClaimTemplates"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    named = [volume["name"] for volume in pod["volumes"]] + [claim["metadata"]["name"] for claim in claims]
    assert sorted(mounts) == sorted(named)
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    # Secrets come from the environment, or from files below the place where they are mounted.
    for name in re.findall(r'"env:(\w+)"', text):
        monkeypatch.setenv(name, "x")
    for path in re.findall(r'"file:([^"]+)"', text):
        assert Path(path).parent == mounts["secrets"]
        (tmp_path / Path(path).name).write_text("x")
    (tmp_path / "cep.toml").write_text(text.replace("file:/etc/cep/secrets", f"file:{tmp_path}"))
    settings = read_settings(tmp_path / "cep.toml", {})
    # The container starts a command of cep, with the settings where they are mounted.
    parser = Parser()
    verb.add_arguments(parser)
    assert container["command"][:2] == ["cep", verb.__name__.rpartition(".")[2]]
    assert parser.parse_args(container["command"][2:]).conf == mounts["settings"] / "cep.toml"
    assert settings.job.checkpoint is not None
    assert settings.job.checkpoint.is_relative_to(mounts["state"])
    # The manifest asks for health and metrics at the port that the job serves.
    (port,) = container["ports"]
    assert settings.observe.listen == ("0.0.0.0", port["containerPort"])
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    probes = {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    assert all(container[probe]["httpGet"] == {"path": path, "port": port["name"]} for probe, path in probes.items())


def test_supervisors_restart_a_job_as_the_table_of_exit_codes_says() -> None:
    """The unit of systemd follows the codes. A StatefulSet cannot: its pod shows the code and the end of the log."""
    unit = configparser.RawConfigParser(delimiters=("=",), strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # names of systemd have capitals
    unit.read_string((ROOT / "demo" / "cep.service").read_text())
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    codes = [int(code) for code, meaning in MEANINGS.items() if meaning.restart is False]
    assert list(map(int, service["RestartPreventExitStatus"].split())) == codes
    program, verb, *arguments = service["ExecStart"].split()
    parser = Parser()
    run.add_arguments(parser)
    assert (Path(program).name, verb) == ("cep", "run")
    assert str(parser.parse_args(arguments).conf) == "/etc/cep/cep.toml"
    for name in PODS:
        pod = list(yaml.safe_load_all((ROOT / "demo" / name).read_text()))[1]["spec"]["template"]["spec"]
        assert pod["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert pod["terminationGracePeriodSeconds"] == int(service["TimeoutStopSec"]) > STOP_MS_MAX / 1_000
    page = (ROOT / "cep" / "docs" / "guides" / "operate.md").read_text()
    assert f"after {', '.join(map(str, codes[:-1]))} and {codes[-1]} |" in page


def test_the_image_has_what_it_copies_and_what_a_job_asks_for() -> None:
    text = (ROOT / "demo" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = [words[1:-1] for words in lines if words[0] == "COPY" and not words[1].startswith("--from")]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    sent = (ROOT / "demo" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == {name for names in copied for name in names}
    # tests/test_lock.py describes the parts of the lock.
    parts = re.findall(r"LOCK=(\S+)", (ROOT / "demo" / "Dockerfile").read_text())
    assert set(parts) == {"image", "demo"}
    assert all(f"# end of {part}\n" in (ROOT / "lock.txt").read_text() for part in parts)
    installs = re.findall(r"pip install (.*?)(?:&&|$)", text, re.MULTILINE)
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line] == []
    assert len(installs) == 4
    assert re.findall(r"pip wheel .*--no-build-isolation", text)
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert find_spec(module) is not None
    pods = [
        list(yaml.safe_load_all((ROOT / "demo" / name).read_text()))[1]["spec"]["template"]["spec"] for name in PODS
    ]
    assert {str(pod["securityContext"]["runAsUser"]) for pod in pods} == {
        words[1] for words in lines if words[0] == "USER"
    }
    for name in ("cep.toml", "cep-run.toml"):
        rules = tomllib.loads((ROOT / "demo" / name).read_text())["job"]["rules"]
        assert ["COPY", "rules", rules] in lines


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    event = {"card_id": "c1", "account_id": "a1", "status": "approved", "channel": "ecom", "country": "FR"}
    lines = [
        orjson.dumps({**event, "tx_id": f"t{n}", "event_time": f"2026-03-01T10:00:{n}0Z", "amount": amount})
        for n, amount in enumerate((0.5, 640.0))
    ]
    (tmp_path / "events" / "a.jsonl").write_bytes(b"\n".join(lines))
    submit = Path(sys.executable).with_name("spark-submit")
    options = ("--master", "local[1]", "--driver-memory", "700m", str(ROOT / "demo" / "submit.py"))
    words = (
        "live", "--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--key-groups", "4",
        "--checkpoint", str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--available-now",
    )  # fmt: skip
    process = subprocess.run(
        [str(submit), *options, *words], capture_output=True, text=True, timeout=WAIT_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-4_000:]
    assert "small_then_large" in "".join(path.read_text() for path in (tmp_path / "alerts").rglob("*.jsonl"))
