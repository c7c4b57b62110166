"""The settings of a job as flags of a verb; flags and settings file → checked settings; the verb `cep settings`.

Flags, help and defaults come from the model (model/settings.py), so that file and command line say the same.
Tested by: tests/cli/test_main.py, tests/cli/test_publish.py
"""

import argparse
import sys
from typing import Any

from pydantic import BaseModel

from cep.base.secrets import use_secrets_file
from cep.base.text import visible
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.model.client_settings import switched_off
from cep.model.settings import SECTIONS, Settings, default_file, extra_of, read_settings

HELP = """\
Print a settings file with every setting, its default and its meaning; or check an existing file.

examples:
  cep settings > cep.toml
  cep settings --check cep.toml
  cep live --conf cep.toml
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--check FILE", "say whether this file can be used; secrets come from here as well")


def run(options: argparse.Namespace) -> int:
    """Print the file, or check one. Raises: UsageError with every problem of the file."""
    if options.check is None:
        print(default_file(), end="")
        return 0
    _warn(read_settings(options.check, {}))
    printed(f"{options.check} can be used")
    return 0


_SEPARATOR = "."
_OF_JOBS = ("job", "events", "control", "kafka", "output", "observe", "secrets")


def add_setting_arguments(parser: Parser, *sections: str) -> None:
    """Declare `--conf` and a flag for each setting of these sections that has one."""
    parser.declare("--conf FILE", "settings file (TOML); flags override it. `cep settings` prints one")
    for section in sections:
        group = parser.add_argument_group(section, (SECTIONS[section].__doc__ or "").strip())
        add_settings(group, SECTIONS[section], f"{section}{_SEPARATOR}")


def add_job_arguments(parser: Parser, section: str) -> None:
    """Declare the flags of a live job; `section` has the flags of the verb's own runner."""
    add_setting_arguments(parser, *_OF_JOBS, section)
    parser.add_argument("--connector", dest="events.connector", help=argparse.SUPPRESS)  # refused with the way forward
    parser.declare("--available-now", "stop when everything that is there is processed")


def add_settings(group: argparse._ArgumentGroup, section: type[BaseModel], prefix: str) -> None:
    """Declare a flag for each setting of a section that has one; the value goes to `prefix` + the setting's name."""
    for name, info in section.model_fields.items():
        extra = extra_of(info)  # the flag, the word for its value ("" without one), an example
        if not extra["flag"]:
            continue
        default = info.get_default()
        is_list = default == ()  # of such a setting the flag may be repeated
        if default is False and not extra["metavar"]:  # the flag alone means True
            group.add_argument(
                extra["flag"], dest=f"{prefix}{name}", action="store_const", const=True, help=info.description
            )
            continue
        text = f"{(info.description or '').rstrip('.')}{_shown(extra['example'], default)}"
        group.add_argument(
            extra["flag"],
            dest=f"{prefix}{name}",
            metavar=extra["metavar"],
            help=(text + "; may be given several times" if is_list else text).replace("%", "%%"),
            action="append" if is_list else _Once,
            type=int if extra["metavar"] == "N" else str,
        )


class _Once(argparse.Action):
    """A flag that has one value: two different ones are refused, so that none is lost without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: object, flag: str | None = None
    ) -> None:
        if getattr(options, self.dest, None) not in (None, value):
            parser.error(f"{flag} is given twice, and takes one value; leave one out")
        setattr(options, self.dest, value)


def add_secrets_argument(parser: Parser) -> None:
    """Declare `--secrets` for a verb without settings; `use_secrets_file` takes its value."""
    parser.declare(
        "--secrets FILE",
        "the file of keys of fields that are declared pan or sensitive (default: CEP_SECRETS_FILE or CEP_SECRETS)",
    )


def add_trust_arguments(parser: Parser) -> None:
    """Declare the flags that name the signers of changes, for verbs without a settings file."""
    parser.declare("--signers FILE", "who may sign changes, as the job has it: others are refused")
    parser.declare("--root-key KEY", "public key that the signers file is signed with")


def settings_of(options: argparse.Namespace) -> Settings:
    """Read the settings from flags and file; this process uses their keys. Raises: UsageError with every problem."""
    flags: dict[str, dict[str, Any]] = {}
    for option, value in vars(options).items():
        section, separator, name = option.partition(_SEPARATOR)
        if separator and value is not None:
            flags.setdefault(section, {})[name] = value
    settings = read_settings(options.conf, flags)
    use_secrets_file(settings.secrets.file)
    _warn(settings)
    return settings


def _warn(settings: Settings) -> None:
    """Say which checks of certificates the settings switch off."""
    for name in switched_off(settings.kafka.client):
        message = f"warning: {name} in [kafka.client]: whoever is between here and the brokers can read and change all"
        print(visible(f"{message}; leave it out, and name the authority in `ssl.ca.location`"), file=sys.stderr)


def _shown(example: str, default: object) -> str:
    if default is None or default in ((), {}, ""):
        return ""
    return f" (default: {example.strip(chr(34)) if example else default})"
