"""`state_digest`: the same for the same training state, and for nothing else."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import codec
from speedtronic.checkpoint.digest import STATE_KEYS, bytes_digest, state_digest
from tests.unit.checkpoint.states import state_at

State = dict[str, Any]


def change(path: str, value: Any) -> Callable[[State], None]:
    """Put `value`, or what it makes of the former one, at `path`."""

    def apply(state: State) -> None:
        *folders, last = path.split("/")
        place: Any = state
        for folder in folders:
            place = place[int(folder) if folder.isdigit() else folder]
        place[last] = value(place[last]) if callable(value) else value

    return apply


def nudge(x: torch.Tensor) -> torch.Tensor:
    """The last element moved to the next number that its type has."""
    moved = x.clone()
    moved.view(-1)[-1] = torch.nextafter(moved.view(-1)[-1], torch.tensor(9.0, dtype=x.dtype))
    return moved


def bump_last(x: torch.Tensor) -> torch.Tensor:
    moved = x.clone()
    moved[-1] += 1
    return moved


DIFFERENT = {
    "one element": change("model/embedding", nudge),
    "one element of bf16": change("model/norm", nudge),
    "one of two tied tensors": change("model/head", nudge),
    "minus zero": change("optimizer/state/0/exp_avg", lambda x: x * 0 * -1),
    "dtype": change("model/norm", lambda x: x.to(torch.float16)),
    "dtype, bytes the same": change("model/norm", lambda x: x.view(torch.int16)),
    "shape": change("model/embedding", lambda x: x.reshape(3, 4)),
    "transposed": change("model/embedding", lambda x: x.t()),
    "a new key": change("model/extra", torch.ones(1)),
    "an empty tensor more": change("model/extra", torch.ones(0)),
    "a key gone": lambda state: state["model"].pop("norm"),
    "a key renamed": lambda state: state["model"].update(other=state["model"].pop("norm")),
    "two values swapped": lambda state: state["model"].update(
        embedding=state["model"]["norm"], norm=state["model"]["embedding"]
    ),
    "key as text": lambda state: state["optimizer"].update(
        state={"0": state["optimizer"]["state"][0]}
    ),
    "optimizer": change("optimizer/state/0/exp_avg", nudge),
    "optimizer's step": change("optimizer/state/0/step", lambda x: x + 1),
    "mode": change("modes/block", True),
    "true for 1": change("data/shuffle", 1),
    "float for int": change("scheduler/last_epoch", 4.0),
    "schedule": change("scheduler/max_steps", 101),
    "rate": change("scheduler/base_lrs", [1e-3 + 1e-18]),
    "random word": change("rng/torch", bump_last),
    "cached Gaussian": change("rng/python/gauss", 0.5),
    "position": change("data/samples", 17),
    "scaler": change("scaler", {"scale": 2.0}),
    "coordinator": change("coordinator", {"outer_step": 1}),
    "step": change("step", 5),
    "samples": change("samples", 5),
    "tokens": change("tokens", 5),
    "skipped updates": change("skipped_updates", 1),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differs_with(name: str) -> None:
    state = copy.deepcopy(state_at(4))
    DIFFERENT[name](state)
    assert state_digest(state) != state_digest(state_at(4))


def test_every_kind_of_state_is_covered() -> None:
    state = state_at(4)
    for key in STATE_KEYS:
        assert state_digest({**state, key: "other"}) != state_digest(state), key


SAME = {
    "config": change("config", {"run": {"output_dir": "elsewhere"}}),
    "loss": change("loss", 2.0),
    "precision": change("precision", {"mode": "other"}),
    "order of keys": lambda state: state.update(model=dict(reversed(state["model"].items()))),
    "untied, equal": change("model/head", torch.clone),
    "not contiguous": change("model/embedding", lambda x: x.t().contiguous().t()),
    "a parameter": change("model/embedding", torch.nn.Parameter),
    "tuple for list": change("scheduler/base_lrs", tuple),
}


@pytest.mark.parametrize("name", SAME)
def test_does_not_differ_with(name: str) -> None:
    state = copy.deepcopy(state_at(4))
    SAME[name](state)
    assert state_digest(state) == state_digest(state_at(4))


def test_survives_the_disk() -> None:
    file = io.BytesIO()
    digest, size = codec.encode_payload(state_at(4), file)
    data = file.getvalue()
    assert (digest, size) == (bytes_digest(data), len(data))
    assert state_digest(codec.decode_payload(data)) == state_digest(state_at(4))


def test_is_the_same_in_every_version() -> None:
    """Digests on disk outlive the program: a change of format needs a new name than `state1`."""
    weight = torch.full((4, 3), 4.0)
    state = {
        "model": {"embedding": weight, "head": weight, "norm": torch.ones(3, dtype=torch.bfloat16)},
        "modes": {"": True, "block": False},
        "optimizer": {"state": {0: {"step": torch.tensor(4.0), "exp_avg": weight * 2}}},
        "scheduler": {"last_epoch": 4, "max_steps": 100, "base_lrs": [1e-3]},
        "scaler": None,
        "step": 4,
        "samples": 16,
        "tokens": 256,
        "skipped_updates": 0,
        "data": {"samples": 16, "epoch": 0, "shuffle": True},
        "rng": {"torch": torch.arange(16, dtype=torch.uint8), "python": {"gauss": None}},
        "coordinator": None,
    }
    assert state_digest(state) == "state1:13429f3b01e468ea931fc8cc587638dc"


def test_refuses_what_it_cannot_identify() -> None:
    with pytest.raises(TypeError, match=r"s:data/s:seen: a checkpoint cannot hold a set"):
        state_digest({**state_at(4), "data": {"seen": {1}}})
