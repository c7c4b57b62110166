"""All pages → a site, with every link checked: `python -m tests.docs.site FOLDER` (needs `pip install 'cep[docs]'`).

    cep/docs, README files of rooms ──assemble──▶ a folder of Markdown ──zensical build --strict──▶ FOLDER

The pages have the order of `cep docs`. The site fetches nothing: the theme brings its fonts and scripts.
Tested by: tests/docs/test_links.py
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cep.cli.docs import INDEX, assemble, page_title, pages_in_order

SECTIONS = {"start": "Start", "guides": "Guides", "reference": "Reference", "inside": "Inside"}


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site below the folder. A broken link makes the exit code other than 0."""
    with tempfile.TemporaryDirectory() as work_folder:
        source = Path(work_folder) / "pages"
        assemble(source)
        settings = Path(work_folder) / "mkdocs.yml"
        settings.write_text(yaml.safe_dump(settings_of(pages_in_order()), sort_keys=False))
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--config-file", str(settings)]
        process = subprocess.run(command, cwd=work_folder, capture_output=True, text=True, check=False)
        if process.returncode == 0:
            shutil.copytree(Path(work_folder) / "site", folder, dirs_exist_ok=True)
        return process


def settings_of(names: Iterable[str]) -> dict[str, Any]:
    """Return the site's settings, with the pages in this order."""
    navigation: dict[str, list[dict[str, str]]] = {}
    for name in names:
        section = SECTIONS.get(name.split("/")[0], "")
        if name != INDEX:
            navigation.setdefault(section, []).append({page_title(name): f"{name}.md"})
    return {
        "site_name": "cep",
        "docs_dir": "pages",
        "site_dir": "site",
        "theme": {"font": False, "features": ["navigation.sections", "content.code.copy"]},
        "nav": [f"{INDEX}.md", *({section: pages} for section, pages in navigation.items())],
        "markdown_extensions": ["tables", "pymdownx.superfences", {"toc": {"permalink": True}}],
    }


if __name__ == "__main__":
    built = build(Path(sys.argv[1]))
    print(built.stdout + built.stderr, end="")
    sys.exit(built.returncode)
