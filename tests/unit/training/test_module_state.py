"""What of a model changed since its factory returned it."""

from functools import cached_property
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic.errors import RestoreError, UnsavableError
from speedtronic.training.module_state import ModuleState


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.calls = 0
        self.tool = Tool()
        self.hidden = [nn.Linear(2, 2)]
        self.refs = [self.inner, self.inner.weight]
        self.lazy: Any = None
        self.infinite = float("nan")
        self.big = [0] * 20_000

    @cached_property
    def derived(self) -> object:
        return object()


class Tool:
    def __init__(self) -> None:
        self.count = 0


def test_an_unchanged_model_has_nothing_to_save() -> None:
    model = Holder()
    state = ModuleState(model)
    with torch.no_grad():  # as an optimizer does
        model.inner.weight.add_(1)
    model.loss = model.inner(torch.ones(2)).sum()
    assert model.derived
    model.eval()
    assert state.state_dict() == {}


def test_what_changed_and_cannot_be_saved_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Holder()
    state = ModuleState(model)
    model.calls, model.tool.count = 1, 1
    with torch.no_grad():
        model.hidden[0].weight.add_(1)
    for _ in range(2):
        attributes = state.state_dict()["attributes"]
        assert attributes == {"": {"set": {"calls": 1}, "gone": []}}
    assert [line.split(".")[0] for line in caplog.messages] == [
        "model: tool is a tests",
        "model: hidden[0] is a torch",
    ]


def test_a_flag_does_not_come_back_without_what_it_speaks_of() -> None:
    model = Holder()
    state = ModuleState(model)
    model.calls, model.lazy = 1, Tool()
    assert state.state_dict() == {}
    model.lazy = None
    assert state.state_dict()["attributes"] == {"": {"set": {"calls": 1}, "gone": []}}


def test_tensors_in_attributes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    model = Holder()
    state = ModuleState(model)
    model.small, model.large = torch.ones(2), torch.zeros(2**25)
    assert state.state_dict() == {}, "made later, so all or nothing"
    assert "large holds tensors, with which attributes exceed 64 MiB" in caplog.text


def test_other_parameters_than_at_the_start_are_refused() -> None:
    for change, name in (
        (lambda model: setattr(model, "more", nn.Linear(1, 1)), "more.bias"),
        (lambda model: setattr(model.inner, "weight", nn.Parameter(torch.ones(3, 2))), "inner"),
        (lambda model: delattr(model, "inner"), "inner.bias"),
    ):
        model = Holder()
        state = ModuleState(model)
        change(model)
        with pytest.raises(UnsavableError, match=f"the parameter {name}"):
            state.state_dict()


@pytest.mark.parametrize(
    "saved",
    [
        {"attributes": {"gone": {"set": {}, "gone": []}}},
        {"generators": {":calls": torch.zeros(3)}},
        {"requires_grad": {"nothing": True}},
        {"buffers": {"no.buffer": torch.ones(1)}},
    ],
)
def test_state_of_another_model_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(RestoreError, match="attributes do not fit the checkpoint"):
        ModuleState(Holder()).load_state_dict(saved)
