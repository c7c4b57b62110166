# mypy: disable-error-code="no-untyped-call,misc"
"""numba, imported without the settings of the current folder. All modules take numba from here.

numba reads `.numba_config.yaml` in the current folder, if the package yaml is there. That folder may be a repository of
strangers, and their file could slow a job down or end it. So numba does not find the package while it is imported. The
variables of the environment that begin with NUMBA_ count as before.
Tested by: tests/kernels/test_compiler.py
"""

import sys
import warnings

_YAML = "yaml"
_before = sys.modules.get(_YAML)
sys.modules[_YAML] = None  # type: ignore[assignment]  # an import of it fails
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba warns of a file that it cannot read
        import numba
        from numba.core import codegen, event
        from numba.core import compiler as numba_compiler
        from numba.core.caching import FunctionCache
finally:
    del sys.modules[_YAML]
    if _before is not None:
        sys.modules[_YAML] = _before

__all__ = ["FunctionCache", "codegen", "event", "numba", "numba_compiler"]
