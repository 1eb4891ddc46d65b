"""What a payload of 2.0 says is checked value by value before anything is made of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from speedtronic.checkpoint.untrusted_types import WordArray
from speedtronic.errors import CorruptError
from speedtronic.legacy import payload
from speedtronic.legacy.facts import check_run, check_weights
from tests.legacy.old_runs import FILES

CONTENT = (FILES / "tied/checkpoints/step_000000000004.pt").read_bytes()


@pytest.fixture
def state() -> dict[str, Any]:
    return payload.read(CONTENT)


def words(count: int, value: int = 1) -> WordArray:
    array = WordArray()
    array.words = torch.full((count,), value)
    return array


def numpy(*change: Any) -> Callable[[dict[str, Any]], object]:
    """Replace the parts of NumPy's state at the positions given."""

    def replace(state: dict[str, Any]) -> None:
        parts = list(state["rng"]["numpy"])
        for position, value in zip(change[::2], change[1::2], strict=True):
            parts[position] = value
        state["rng"]["numpy"] = tuple(parts)

    return replace


def put(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    """Set what lies at `path`."""

    def set_value(state: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        for folder in folders:
            state = state[folder]
        state[last] = value

    return set_value


def group(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["optimizer"]["param_groups"][0].update(changes)


MERSENNE = (3, tuple(range(625)), None)
WRONG: dict[str, list[Callable[[dict[str, Any]], object]]] = {
    "step": [put("step", wrong) for wrong in (4.0, "4", True, -1, 10**12, [4])],
    "samples": [put("samples", wrong) for wrong in ("many", 2**63, -1, 1.5)],
    "tokens": [put("tokens", torch.ones(())), put("tokens", {})],
    "model": [put("model", []), put("model", {1: torch.ones(1)}), put("model", {"w": words(1)})],
    "optimizer": [
        put("optimizer", []),
        put("optimizer/state", {"0": {}}),
        put("optimizer/state", {0: {"exp_avg": "x"}}),
        put("optimizer/param_groups", {}),
        group(params=["a"]),
        group(params=None),
        group(lr=words(1)),
    ],
    "scheduler": [
        put("scheduler", [3]),
        put("scheduler/last_epoch", 3.5),
        put("scheduler/base_lrs", []),
        put("scheduler/base_lrs", ["fast"]),
    ],
    "scaler": [put("scaler", 5), put("scaler", {"scale": "large"})],
    "precision": [put("precision", "fp32"), put("precision", {"mode": torch.ones(1)})],
    "config": [
        put("config", "none"),
        put("config", {"data": {}}),
        put("config/data", []),
        put("config/scheduler", {"max_steps": None}),
        put("config/model", {"width": words(2)}),
    ],
    "rng": [
        put("rng", []),
        put("rng/python", (2, *MERSENNE[1:])),
        put("rng/python", (3, (1,) * 624, None)),
        put("rng/python", (3, (2**32,) * 624 + (1,), None)),
        put("rng/python", (3, (1,) * 624 + (625,), None)),
        put("rng/python", (*MERSENNE[:2], "gauss")),
        put("rng/torch", torch.zeros(10, dtype=torch.uint8)),
        put("rng/torch", torch.zeros(5056)),
        put("rng/torch", b"bytes"),
        put("rng/cuda", [torch.zeros(3)]),
        put("rng/cuda", 5),
        numpy(0, "PCG64"),
        numpy(1, words(623)),
        numpy(1, [1] * 624),
        numpy(2, 625),
        numpy(3, 2),
        numpy(4, "0"),
    ],
}


@pytest.mark.parametrize(
    ("key", "change"), [(key, change) for key, changes in WRONG.items() for change in changes]
)
def test_what_is_of_another_type_or_range_is_refused_by_name(
    key: str, change: Callable[[dict[str, Any]], object], state: dict[str, Any]
) -> None:
    check_run(state)
    change(state)
    with pytest.raises(CorruptError, match=f"^payload is damaged: {key} is ") as caught:
        check_run(state)
    assert len(str(caught.value)) < 200


def test_weights_may_come_with_anything(state: dict[str, Any]) -> None:
    check_weights({"model": state["model"], "step": "none"})
    check_weights({"model": {"weight": torch.ones(1), "_extra_state": {"calls": 3}}})
    with pytest.raises(CorruptError, match="it lacks model"):
        check_weights({})
    with pytest.raises(CorruptError, match="model is a list of other content, expected tensors"):
        check_weights({"model": []})
