"""A run that is killed at any instant, any number of times, ends as one that was not: bit for bit."""

import pytest

from tests.faults.runs import killed_again_and_again, run_of

OPTIMIZED = "processes"


@pytest.mark.parametrize("kind", ["penalties", "ranks"])
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(kind, nursery, text, tmp_path):
    found, _ = killed_again_and_again(nursery, run_of(text, kind), tmp_path, 10, kind)
    assert len(found) == 10 and {"saving"} <= {kill.phase for kill in found}
