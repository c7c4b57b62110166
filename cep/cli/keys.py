"""`cep keys …`: a new key, a key's public part, the signature of a signers file, and the contents of a signers file.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cep.base.errors import UsageError
from cep.base.signing import SigningKey, new_key, read_key
from cep.base.terminal import Terminal
from cep.rulebook.signers import read_trust, roots_path, rotate_root, sign_signers, signature_path, withdraw
from cep.rulebook.trust import Trust

HELP = """\
Make keys, and say who may sign changes of rules. A private key stays with its person. CEP_KEY_PASSPHRASE in the
environment encrypts a new key, and opens it later. `cep docs approve` shows the whole way.

examples:
  cep keys new ada.pem                                          also writes ada.pub
  cep keys show ada.pem
  cep keys trust rules/signed/signers.toml --sign-with root.pem  signs the file of signers
  cep keys check rules/signed/signers.toml --root-key ed25519:…
  cep keys withdraw rules/signed/signers.toml --key ed25519:… --sign-with root.pem
  cep keys rotate rules/signed/signers.toml --key ed25519:… --sign-with root.pem
"""
PASSPHRASE = "CEP_KEY_PASSPHRASE"  # noqa: S105 the name of the variable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs below `cep keys` and their arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, line in (
        ("new", "make a key: FILE, and FILE with the ending .pub"),
        ("show", "print the public part of a key"),
    ):
        verbs.add_parser(name, help=line).add_argument("file", type=Path, metavar="FILE", help="the private key")
    trust = verbs.add_parser("trust", help="sign a signers file with the root key")
    trust.add_argument("file", type=Path, metavar="FILE", help="file of signers (signers.toml)")
    trust.add_argument("--sign-with", type=Path, required=True, metavar="FILE", help="the root key")
    gone = verbs.add_parser("withdraw", help="withdraw a key, but for the versions that it has signed")
    gone.add_argument("file", type=Path, metavar="FILE", help="file of signers; the signed changes are next to it")
    gone.add_argument("--key", required=True, metavar="KEY", help="public key of the person (ed25519:…)")
    gone.add_argument("--sign-with", type=Path, required=True, metavar="FILE", help="the root key")
    rotate = verbs.add_parser("rotate", help="sign the change to another root key with the old one")
    rotate.add_argument("file", type=Path, metavar="FILE", help="file of signers (signers.toml)")
    rotate.add_argument("--key", required=True, metavar="KEY", help="public part of the new root key (ed25519:…)")
    rotate.add_argument("--sign-with", type=Path, required=True, metavar="FILE", help="the old root key")
    check = verbs.add_parser("check", help="check a signers file, and print the rights of each person")
    check.add_argument("file", type=Path, metavar="FILE", help="file of signers (signers.toml)")
    check.add_argument("--root-key", required=True, metavar="KEY", help="public key that it is signed with")


def run(options: argparse.Namespace) -> int:
    """Run `cep keys`. Returns 0. Raises: UsageError."""
    console = Terminal(highlight=False, soft_wrap=True)
    match options.what:
        case "new":
            key = new_key(options.file, os.environ.get(PASSPHRASE))
            console.print(f"{options.file} is the private key: give it to nobody", markup=False)
            console.print(f"{options.file.with_suffix('.pub')} is the public key: {key.public}", markup=False)
        case "show":
            console.print(private_key(options.file).public, markup=False)
        case "trust":
            trust = sign_signers(options.file, private_key(options.sign_with))
            _print(trust, console)
            console.print(f"signed: {signature_path(options.file)}; the root key is {trust.root_key}", markup=False)
        case "withdraw":
            trust, only = withdraw(options.file, options.key, private_key(options.sign_with))
            _print(trust, console)
            console.print(f"withdrawn, but for {len(only)} record(s) that it has signed", markup=False)
        case "rotate":
            rotate_root(options.file, options.key, private_key(options.sign_with))
            step = f"raise `version` in {options.file}, and sign it with the new key: `cep keys trust`"
            console.print(f"signed: {roots_path(options.file)}; {step}", markup=False)
        case _:
            _print(read_trust(options.file, options.root_key), console)
    return 0


def private_key(path: Path | None) -> SigningKey:
    """Read the key of the user of the verb. Raises: UsageError if no key is named, or it cannot be read."""
    if path is None:
        raise UsageError("name your private key with --sign-with FILE; `cep keys new FILE` makes one")
    return read_key(path, os.environ.get(PASSPHRASE))


def _print(trust: Trust, console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("who", "may", "rules", "expires", "withdrawn"):
        table.add_column(title)
    for signer in trust.signers:
        only = "" if signer.only is None else f"counts for {len(signer.only)} record(s)"
        table.add_row(signer.name, ", ".join(signer.may), ", ".join(signer.rules), signer.expires or "", only)
    console.print(f"rules of {trust.rule_set}, version {trust.version} of the signers", markup=False)
    console.print(table)
    two = ", ".join(kind for kind, count in trust.people if count == 2)
    console.print(f"two people for {two or 'nothing'}; one for all else", markup=False)
