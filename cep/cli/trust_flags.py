"""The flags that name the signers of changes, for verbs without a settings file.

Tested by: tests/cli/test_sign.py
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that name the signers of changes, for verbs without a settings file."""
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="who may sign changes, as the job has it: others are refused"
    )
    parser.add_argument("--root-key", metavar="KEY", help="public key that the signers file is signed with")
