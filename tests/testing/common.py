"""Events and one-line pattern tests, shared by the tests of this folder."""

from cep.lang.load import Checked, load_text
from cep.testing.harness import Verdict, run_test
from tests.lang.common import shown

EVENTS = """
event pay {
  id id  event_time time  card string  amount decimal(2)  ok bool  note string?  km float  kind enum(pos, web)
}
event login { login_id id  event_time time  card string  amount decimal(2)  device string? }
"""


def checked(text: str) -> Checked:
    loaded = load_text(EVENTS + text)
    assert loaded.ok, shown(loaded)
    return loaded


def verdict_of(pattern: str, script: str, test: str = "", header: str = "pattern p by card") -> Verdict:
    """Return the verdict of the one test of a pattern over `pay` and `login`."""
    loaded = checked(f'{header} {{ {pattern} }}\ntest "t" of p {test} {{ {script} }}')
    return run_test(loaded.schema, loaded.tests[0])
