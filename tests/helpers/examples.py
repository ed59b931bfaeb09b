"""How many examples property tests try: few in `make test`, more in `make test-all`."""

import os

TIMES = int(os.environ.get("RLAX_TEST_EXAMPLES_TIMES", "1"))


def examples(few: int) -> int:
    """The number of examples of a test that tries ``few`` in `make test`."""
    return few * TIMES
