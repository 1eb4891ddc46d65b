"""The copy of a state is the state, and stays it when the state moves on."""

import io
from typing import Any

import torch
from torch import nn

from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.writer import HostBuffers
from tests.recipes import assert_same_tensors
from tests.unit.checkpoint.states import state_at


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through the bytes of a file, so that nothing of it changes any more."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return {"size": round(len(file.getvalue()), -3), **torch.load(file, weights_only=True)}


def assert_same(copy: dict[str, Any], expected: dict[str, Any]) -> None:
    assert_same_tensors(copy, expected)
    assert copy.keys() == expected.keys()
    assert (copy["plain"], copy["modes"]) == (expected["plain"], expected["modes"])
    assert copy["size"] == expected["size"], "shared memory is shared no more"


def rich_state() -> dict[str, Any]:
    """Ties, views, a transpose, an empty tensor, module versions, what training saves."""
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    weight = torch.randn(600, 40)
    return {
        **state_at(4),
        "module": model.state_dict(),
        "odd": [weight, weight.t(), weight[2:4, 1], torch.empty(0), torch.tensor(3)],
        "plain": (1, "a", None, 2.5, True),
    }


def test_the_copy_is_the_state() -> None:
    state = rich_state()
    copy = HostBuffers().copy(state)
    assert_same(saved(copy), saved(state))
    assert copy["module"]._metadata == state["module"]._metadata
    assert state_digest(copy) == state_digest(state)
    assert copy["module"]._metadata == state["module"]._metadata
    assert state_digest(copy) == state_digest(state)


def test_what_changes_afterwards_does_not_reach_the_copy() -> None:
    state = rich_state()
    before = saved(state)
    copy = HostBuffers().copy(state)
    for tensor in [*state["odd"], *state["module"].values(), *state["model"].values()]:
        tensor.fill_(7)
    state["rng"]["torch"].zero_()
    state["modes"]["block"] = True
    state["odd"].append(1)
    assert_same(saved(copy), before)


def test_memory_is_used_again() -> None:
    buffers, state = HostBuffers(), rich_state()
    first = buffers.copy(state)["odd"][0].data_ptr()
    state["odd"][0].fill_(5)
    copy = buffers.copy(state)
    assert copy["odd"][0].data_ptr() == first
    assert_same(saved(copy), saved(state))


def test_a_state_of_another_shape_is_copied_too() -> None:
    buffers = HostBuffers()
    buffers.copy(rich_state())
    state = {"step": 3, "a": torch.randn(100), "b": torch.arange(7)}
    assert_same_tensors(buffers.copy(state), state)
    other = rich_state()
    assert_same(saved(buffers.copy(other)), saved(other))


def test_parameters_and_sparse_tensors_become_plain_copies() -> None:
    parameter = nn.Parameter(torch.ones(3))
    sparse = torch.eye(3).to_sparse()
    copy = HostBuffers().copy({"parameter": parameter, "sparse": sparse})
    with torch.no_grad():
        parameter.zero_()
    assert torch.equal(copy["parameter"], torch.ones(3))
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(3))
