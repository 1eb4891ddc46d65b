"""What is wrong with a checkpoint that loads, and how much of its data is repeated."""

from dataclasses import replace
from typing import Any

import pytest

from speedtronic.recovery.checklist import describe_repetition
from speedtronic.recovery.counter_check import disagreements
from speedtronic.worker.messages import Facts
from tests.unit.checkpoint.test_agreement import MANIFEST

FACTS = Facts(
    step=6,
    samples=32,
    tokens=512,
    disagreements=[],
    data={"samples": 32, "shuffle": True},
    data_fingerprint=None,
    config={},
    history=[],
    not_finite=[],
    state_digest=MANIFEST.state_digest,
    seconds=0.1,
)


def test_a_whole_one_is_right() -> None:
    assert disagreements(MANIFEST, FACTS) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"disagreements": ["tokens: 511"]}, "tokens: 511"),
        ({"not_finite": ["model/a"]}, "NaN or infinity in model/a"),
        ({"state_digest": "state1:f"}, "state1:f was loaded, the manifest has"),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], said: str) -> None:
    [found] = disagreements(MANIFEST, replace(FACTS, **change))
    assert said in found


def test_how_much_is_repeated() -> None:
    assert describe_repetition(FACTS.data).startswith(
        "0 samples: the order is a function of the seed"
    )
    stream = {"samples": 32, "index": 2, "begun": 8, "own_state": True}
    assert "a state of their own, at sample 32" in describe_repetition(stream)
    assert "up to 24 are read again" in describe_repetition({**stream, "own_state": False})
