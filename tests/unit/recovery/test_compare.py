"""Where two states first differ, and by how much."""

from typing import Any

import pytest
import torch

from speedtronic.checkpoint.digest import state_digest
from speedtronic.recovery.compare import difference


def state(**changes: Any) -> dict[str, Any]:
    return {
        "model": {"b": torch.zeros(2), "a": torch.tensor([1.0, float("nan")])},
        "data": {"samples": 8, "source": {"own": torch.zeros(1)}},
        "step": 2,
        "config": {},
        **changes,
    }


@pytest.mark.parametrize(
    "other", [state(), state(config={"run": 1}), state(data={"samples": 8, "source": 3})]
)
def test_the_same(other: dict[str, Any]) -> None:
    assert difference(other, state()) is None
    assert state_digest(other) == state_digest(state())


A = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 3}, "1 of 13 values differ, first step: found 3, expected 2"),
        (
            {"step": 3, "model": {"b": torch.tensor([0.0, -0.5]), "a": A}},
            "2 of 13 values differ, first model/b: max abs difference 0.5",
        ),
        (
            {"model": {"b": torch.tensor([0.0, -0.0]), "a": A}},
            "1 of 13 values differ, first model/b: max abs difference 0",
        ),
        ({"model": {"a": A}}, "first model/b: found nothing, expected float32[2]"),
        (
            {"model": {"b": torch.zeros(2, dtype=torch.float64), "a": A}},
            "first model/b: found float64[2], expected float32[2]",
        ),
        ({"model": {"b": torch.zeros(3), "a": A}}, "found float32[3], expected float32[2]"),
        ({"data": {"samples": 8.0}}, "first data/samples: found 8.0, expected 8"),
    ],
)
def test_the_first_difference(change: dict[str, Any], said: str) -> None:
    found = difference(state(**change), state())
    assert found is not None
    assert said in str(found)
    assert state_digest(state(**change)) != state_digest(state())
