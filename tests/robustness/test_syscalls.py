"""A sample of the sweep over system calls; `make robustness` has the whole."""

import pytest

from tests.robustness import syscalls
from tests.robustness.sweeps import Tally


@pytest.mark.skipif(bool(syscalls.obstacle()), reason=syscalls.obstacle())
def test_a_system_call_that_fails_costs_no_more_than_another_try() -> None:
    tally = Tally()
    syscalls.sweep(tally, ["flock"], stride=5)
    assert not tally.examples
    assert {kind for kind in syscalls.KINDS if kind.endswith(" flock")} == set(tally.fired)
