"""Rule files for tests, and copies of the rules of this repository."""

import json
import shutil
from pathlib import Path


def rule_text(name: str = "p", file: str = "p.cep", **fields: object) -> str:
    """Return the file of a live rule of low severity. `fields` replace its fields, or add some."""
    rule = {"id": name, "pattern": name, "file": file, "version": 1, "status": "live", "severity": "low"}
    values = {**rule, "owner": "o", "message": "m", **fields}
    return "".join(f"{field} = {json.dumps(value, ensure_ascii=False)}\n" for field, value in values.items())


def copy_rules(folder: Path) -> Path:
    """Copy the rules and patterns of this repository into a folder. Return the folder of the rules."""
    for name in ("rules", "patterns"):
        shutil.copytree(Path(__file__).parents[1] / name, folder / name)
    return folder / "rules"
