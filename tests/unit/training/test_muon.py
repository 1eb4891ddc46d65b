import copy
from pathlib import Path

import torch
from torch import nn

from speedtronic.model import ReferenceTransformer
from speedtronic.training.optimizers import OptimizerGroup, build_optimizer, hidden_matrices
from tests.recipes import exact_recipe


def transformer(tie_weights: bool = True) -> ReferenceTransformer:
    return ReferenceTransformer(32, 8, 2, 2, 2, 16, 32, tie_weights=tie_weights)


def test_muon_gets_the_hidden_matrices_and_adamw_the_rest(tmp_path: Path) -> None:
    for tied in (True, False):
        model = transformer(tied)
        names = {id(p): name for name, p in model.named_parameters()}
        hidden = [names[id(p)] for p in hidden_matrices(model)]
        assert len(hidden) == 2 * 7
        assert all(name.startswith("blocks.") for name in hidden)
        optimizer = build_optimizer(model, exact_recipe(tmp_path, **{"optimizer.name": "muon"}))
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(held) == sorted(names)


def test_frozen_parameters_are_left_out(tmp_path: Path) -> None:
    model = transformer()
    model.blocks[0].requires_grad_(False)
    assert len(hidden_matrices(model)) == 7
    for name in ("adamw", "muon"):
        optimizer = build_optimizer(model, exact_recipe(tmp_path, **{"optimizer.name": name}))
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_several_optimizers_step_and_are_restored_as_one() -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(3, 3), nn.Linear(3, 3)

    def build(m: nn.Linear) -> OptimizerGroup:
        muon = torch.optim.Muon([m.weight], lr=0.1)
        return OptimizerGroup([muon, torch.optim.AdamW([m.bias], lr=0.1)])

    def update(m: nn.Linear, optimizer: OptimizerGroup, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        assert m.weight.grad is None
        m(x).square().sum().backward()
        optimizer.step()

    optimizer = build(model)
    xs = torch.randn(4, 5, 3)
    for x in xs[:2]:
        update(model, optimizer, x)
    twin.load_state_dict(model.state_dict())
    restored = build(twin)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    restored.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.01
    for x in xs[2:]:
        update(model, optimizer, x)
        update(twin, restored, x)
    assert torch.equal(model.weight, twin.weight)
    assert torch.equal(model.bias, twin.bias)
    assert restored.optimizers[0].param_groups[0]["lr"] == 0.01, "the groups are the live ones"
