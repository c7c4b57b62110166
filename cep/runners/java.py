"""Is there a Java that Spark can use? Asked without Spark, whose own message is a page long and names no cure.

Tested by: tests/runners/spark/test_driver.py
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from cep.base.errors import UsageError

JAVA_MAJOR_MIN = 17
_JAVA_WAIT_S = 20
_JAVA_HELP = "install a JRE 17 or later (Debian: openjdk-17-jre-headless) and set JAVA_HOME or PATH"


def check_java() -> None:
    """Raise UsageError unless the Java that Spark will start exists and is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise UsageError(f"no Java found at {java or 'PATH'}; {_JAVA_HELP}")
    try:
        answer = subprocess.run(  # noqa: S603 the same program that Spark starts a moment later
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{java} does not start: {error}; {_JAVA_HELP}") from error
    # "1.8.0_402" or "17.0.15"; the old scheme's 1 is below the limit too.
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < JAVA_MAJOR_MIN:
        raise UsageError(f"{java} is Java {version[1] if version else 'of unknown version'}; {_JAVA_HELP}")
