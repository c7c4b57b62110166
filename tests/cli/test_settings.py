"""`cep settings`, and flags that are derived from the model."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.limits import KEY_GROUPS_LIVE_DEFAULT
from cep.cli.configured import add_setting_arguments, settings_of
from cep.cli.main import main
from cep.model.settings import SECTIONS, Settings, default_file, extra_of, fields


def parser() -> argparse.ArgumentParser:
    argument_parser = argparse.ArgumentParser()
    add_setting_arguments(argument_parser, *SECTIONS)
    return argument_parser


def test_print_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    printed = capsys.readouterr().out
    assert printed == default_file()
    path = tmp_path / "cep.toml"
    path.write_text(printed)
    assert main(["settings", "--check", str(path)]) == 0
    path.write_text(printed.replace("key_groups", "key_grops"))
    assert main(["settings", "--check", str(path)]) == 2
    assert "did you mean `key_groups`?" in capsys.readouterr().err


def test_flags_of_every_type() -> None:
    assert settings_of(parser().parse_args([])) == Settings()
    words = [
        "--rules",
        "r",
        "--lateness",
        "10 s",
        "--key",
        "a",
        "--key",
        "b,c",
        "--key-groups",
        "8",
        "--levels",
        "3",
        "--listen",
        "9464",
    ]
    settings = settings_of(parser().parse_args([*words, "--listen", "9464"]))
    assert settings.job == Settings().job.model_copy(
        update={"rules": Path("r"), "lateness": 10_000, "keys": ("a", "b,c"), "key_groups": 8, "levels": 3}
    )
    assert settings.observe.listen == ("127.0.0.1", 9464)
    with pytest.raises(UsageError, match="lateness"):
        settings_of(parser().parse_args(["--lateness", "soon"]))


def test_a_flag_with_one_value_is_not_given_twice(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "live"):
        with pytest.raises(SystemExit):
            main([verb, "--rules", "rules", "--events", "a", "--events", "b"])
        assert "--events is given twice, and takes one value" in capsys.readouterr().err
    lists = parser().parse_args(["--columns", "a=b", "--columns", "c=d"])
    assert settings_of(lists).events.columns == ("a=b", "c=d")


def test_help_has_every_flag() -> None:
    text = parser().format_help()
    assert all(extra_of(info)["flag"] in text for _, _, info in fields() if extra_of(info)["flag"])
    assert f"(default: {KEY_GROUPS_LIVE_DEFAULT})" in text
