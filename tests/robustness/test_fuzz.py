"""A sample of the mutated files; `make robustness` reads ten thousand of each kind."""

import pytest

from tests.robustness.fuzz import KINDS, fuzz
from tests.robustness.sweeps import Tally


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_ends_in_words(kind: str) -> None:
    tally = Tally()
    fuzz(tally, kind, 300, seed=1)
    assert tally.fired[kind] == 300
    assert not tally.examples
