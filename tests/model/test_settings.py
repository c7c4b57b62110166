"""Settings: the printed file is valid and has the defaults; every mistake is reported; flags win; secrets hide."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.base.limits import SETTINGS_FILE_BYTES_MAX
from cep.model.setting_types import duration_ms
from cep.model.settings import Settings, default_file, extra_of, fields, read_settings

UNITS = st.sampled_from([("ms", 1), ("s", 1_000), ("h", 3_600_000)])


def written(folder: Path, text: str) -> Path:
    path = folder / "cep.toml"
    path.write_text(text)
    return path


def uncommented() -> str:
    """Return the printed file with every example in force."""
    lines = default_file().splitlines()
    names = {f"# {name} = " for _, name, _ in fields()}
    return "\n".join(line[2:] if any(line.startswith(n) for n in names) else line for line in lines)


def test_the_printed_file_says_the_defaults(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path, default_file()), {}) == Settings() == read_settings(None, {})


def test_the_printed_file_has_every_setting_and_its_examples_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "geheim")
    monkeypatch.setenv("REGISTRY_USER", "geheim:auch")
    monkeypatch.setenv("WEBHOOK_SECRET", "geheim")
    monkeypatch.setenv("CEP_TOKEN", "geheim")
    tables = tomllib.loads(uncommented())
    assert [(s, n) for s, table in tables.items() for n in table] == [(s, n) for s, n, _ in fields()]
    settings = read_settings(written(tmp_path, uncommented()), {})
    assert settings.kafka.client_settings()["sasl.password"] == "geheim"
    assert "geheim" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert all(info.description for _, _, info in fields())
    flags = [extra_of(info)["flag"] for _, _, info in fields() if extra_of(info)["flag"]]
    assert len(flags) == len(set(flags))


def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    text = """
    [job]
    latness = "10 s"
    trigger = "10 parsec"
    key_groups = "many"
    [events]
    max_records = 1.5
    starting = "somewhere"
    [kafka.client]
    "sasl.password" = "env:CEP_NOT_THERE"
    [observe]
    listen = "nowhere"
    [sparks]
    """
    with pytest.raises(UsageError) as error:
        read_settings(written(tmp_path, text), {"spark": {"cores": 0}})
    message = str(error.value)
    for place in (
        "$.job.latness: no such name here; did you mean `lateness`?", "$.job.trigger: '10 parsec'", "$.job.key_groups",
        "$.events.max_records", "$.events.starting", "$.kafka.client: `sasl.password`", "CEP_NOT_THERE",
        "$.observe.listen: 'nowhere'", "$.spark.cores", "did you mean `spark`?",
    ):  # fmt: skip
        assert place in message


@pytest.mark.parametrize(("text", "expected"), [("off", None), ("30 s", 30_000), ("0 s", 0)])
def test_how_far_ahead_an_event_may_be(text: str, expected: int | None, tmp_path: Path) -> None:
    assert read_settings(None, {}).job.ahead_max == 60_000
    path = written(tmp_path, f'[job]\nahead_max = "{text}"\n')
    assert read_settings(path, {}).job.ahead_max == expected
    assert read_settings(None, {"job": {"ahead_max": text}}).job.ahead_max == expected
    with pytest.raises(UsageError, match="is no time"):
        read_settings(None, {"job": {"ahead_max": "of"}})


@pytest.mark.parametrize(
    "text",
    ["earliest", "latest", "2026-03-01T00:00:00Z", "2026-03-01T01:00:00+01:00", '{"payments": {"0": 17, "1": -2}}'],
)
def test_a_place_in_a_topic(text: str, tmp_path: Path) -> None:
    assert read_settings(None, {"events": {"starting": text, "ending": text}}).events.ending == text
    table = '[events]\nstarting = { payments = { "0" = 17, "1" = -2 } }\n'
    assert json.loads(read_settings(written(tmp_path, table), {}).events.starting) == {"payments": {"0": 17, "1": -2}}


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-03-01", "{", "[]", '{"p": 3}', '{"p": {"x": 3}}', '{"p": {"0": -3}}', '{"p": {"0": "3"}}'],
)
def test_what_is_no_place_in_a_topic(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"\$\.events\.ending: .* is no place in a topic; write earliest, latest, a time"
    ):
        read_settings(None, {"events": {"ending": text}})


def test_flags_win_over_the_file_and_paths_are_the_files(tmp_path: Path) -> None:
    path = written(tmp_path, '[job]\nrules = "r"\nlateness = "10 s"\n[events]\nfolder = "/abs"\n')
    settings = read_settings(path, {"job": {"lateness": "2 min"}, "events": {"topic": "t"}})
    assert settings.job.rules == tmp_path / "r"
    assert settings.job.lateness == 120_000
    assert (settings.events.folder, settings.events.topic) == (Path("/abs"), "t")
    assert read_settings(written(tmp_path, '[events]\nfolder = "-"\n'), {}).events.folder == Path("-")
    for text, flags in (("", {"job": {"rules": ""}}), ('[job]\nrules = ""\n', {})):
        with pytest.raises(UsageError, match=r"\$\.job\.rules: .*the path is empty"):
            read_settings(written(tmp_path, text), flags)


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:80", ("::1", 80)), ("", None)],
)
def test_an_address_is_on_this_machine_unless_it_says_more(text: str, address: tuple[str, int] | None) -> None:
    flags = {"observe": {"listen": text, "token": "secret"}}
    assert read_settings(None, flags).observe.listen == address


@pytest.mark.parametrize("text", ["65536", "host:", ":80:", "a b:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"observe\.listen"):
        read_settings(None, {"observe": {"listen": text}})


def test_the_reader_of_a_topic_is_no_choice_any_more(tmp_path: Path) -> None:
    before = written(tmp_path, '[events]\ntopic = "payments"\nconnector = "client"\n')
    assert read_settings(before, {}).events.topic == "payments"
    for flags in ({}, {"events": {"connector": "spark"}}):
        text = '[events]\nconnector = "spark"\n' if not flags else ""
        with pytest.raises(UsageError, match=r"leave `connector` out.*`Rules\.match_stream`"):
            read_settings(written(tmp_path, text), flags)


@pytest.mark.parametrize("data", [b"\xff", b"[job", b" " * (SETTINGS_FILE_BYTES_MAX + 1)])
def test_what_is_no_settings_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cep.toml"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"cep\.toml"):
        read_settings(path, {})
    with pytest.raises(UsageError, match="cannot be read"):
        read_settings(tmp_path / "gone.toml", {})


@given(
    st.integers(0, 999_999_999),
    st.sampled_from([("ms", 1), ("s", 1_000), ("h", 3_600_000)]),
    st.sampled_from(["", " "]),
)
def test_durations(count: int, unit: tuple[str, int], space: str) -> None:
    assert duration_ms(f"{count}{space}{unit[0]}") == count * unit[1]


@pytest.mark.parametrize(
    ("listen", "refused"),
    [
        ("0.0.0.0:1", True),
        ("10.0.0.1:1", True),
        ("a.example:1", True),
        ("[::]:1", True),
        ("9464", False),
        ("localhost:1", False),
        ("[::1]:1", False),
    ],
)
def test_who_listens_to_other_machines_needs_a_token(
    listen: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused:
        with pytest.raises(UsageError, match="requests need a token"):
            read_settings(None, {"observe": {"listen": listen}})
    else:
        assert read_settings(None, {"observe": {"listen": listen}}).observe.bearer_token() is None
    monkeypatch.setenv("CEP_TOKEN", "from outside")
    settings = read_settings(None, {"observe": {"listen": listen, "token": "env:CEP_TOKEN"}})
    assert settings.observe.bearer_token() == "from outside"
    assert "from outside" not in repr(settings)
    monkeypatch.delenv("CEP_TOKEN")
    with pytest.raises(UsageError, match="CEP_TOKEN"):
        read_settings(None, {"observe": {"listen": listen, "token": "env:CEP_TOKEN"}})


def test_a_secret_comes_from_a_file_as_a_platform_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "token").write_text("from a file\n")
    (tmp_path / "token").symlink_to(tmp_path / "..data" / "token")
    named = f"file:{tmp_path / 'token'}"
    settings = read_settings(None, {"observe": {"token": named}, "kafka": {"client": {"sasl.password": named}}})
    assert settings.observe.bearer_token() == settings.kafka.client_settings()["sasl.password"] == "from a file"
    assert "from a file" not in repr(settings)
    for data, reason in (
        (None, "no such file"),
        (b"\n", "is empty"),
        (b"\xff", "cannot be read"),
        (b"x" * 70_000, "65"),
    ):
        (tmp_path / "..data" / "token").unlink(missing_ok=True)
        if data is not None:
            (tmp_path / "..data" / "token").write_bytes(data)
        with pytest.raises(UsageError, match=reason):
            read_settings(None, {"observe": {"token": named}})


@pytest.mark.parametrize("url", ["https://ann:t0p-word@registry:8081", "https://registry?token=t0p-word"])
def test_a_registrys_address_with_a_secret_is_refused_unshown(url: str) -> None:
    with pytest.raises(UsageError, match=r"basic\.auth\.user\.info") as refused:
        read_settings(None, {"events": {"registry": {"url": url}}})
    assert "t0p-word" not in str(refused.value)
