"""The suite catches stores that are broken on purpose; one that it lets pass would make it void."""

import random

import pytest

from tests.robustness.broken import BROKEN
from tests.robustness.bucket import Bucket
from tests.robustness.rot import Rot
from tests.robustness.scenarios import SCENARIOS
from tests.robustness.sweeps import Sweep, Tally


@pytest.mark.parametrize("name", BROKEN)
def test_the_suite_catches(name: str) -> None:
    tally = Tally()
    if name == "digest not checked":
        Rot(BROKEN[name]).of_one_file(tally, 40, random.Random(0))
        assert tally.violated["bit flip in a payload"] > 5
        return
    for scenario in SCENARIOS:
        if scenario.name in ("first save", "next save, keep 1"):
            Sweep(scenario, BROKEN[name]).power_losses(tally, 16, random.Random(0))
    assert tally.violated["power loss"] > 5
    assert tally.fired["power loss"] > tally.violated["power loss"]


class DeletesBeforeItCopies(Bucket):
    """What moves a file like this has lost it when it is killed in between."""

    def rename(self, old: str, new: str) -> None:
        content = self._filesystem.cat_file(self._key(old))
        self.delete(old)
        self._filesystem.pipe_file(self._key(new), content)


def test_the_suite_catches_a_move_that_deletes_first() -> None:
    tally = Tally()
    for scenario in SCENARIOS:
        if scenario.name in ("repair", "save of another state, keep 1"):
            Sweep(scenario, place=DeletesBeforeItCopies).operation_faults(tally)
    assert tally.violated["killed after at request rm_file"]
    assert sum(tally.fired.values()) > sum(tally.violated.values())
