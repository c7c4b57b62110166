"""The `cep` command as a program for spark-submit, whose options then say where Spark runs and with how much memory.

spark-submit --master 'local[4]' --driver-memory 4g demo/submit.py live --conf cep.toml
Tested by: tests/demo/test_operations.py
"""

from __future__ import annotations

import sys

from cep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
