"""Build the optimizer: AdamW, or Muon with AdamW."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from speedtronic.errors import ConfigError

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig
    from speedtronic.config.sections import OptimizerConfig


def build_optimizer(model: nn.Module, config: "SpeedtronicConfig") -> torch.optim.Optimizer:
    """Build AdamW (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101), or Muon with AdamW.

    Matrices decay; vectors (norm gains, biases) do not. Frozen parameters are left out.

    Raises:
        ConfigError: nothing can be trained, a parameter is of a kind that no optimizer here can
            update, or the fused kernel is not there.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("model: no parameter requires a gradient; there is nothing to train")
    _refuse_untrainable(model)
    section = config.optimizer
    if section.name == "adamw":
        return _adamw(trainable, section)
    hidden = hidden_matrices(model)
    taken = {id(p) for p in hidden}
    rest = [p for p in trainable if id(p) not in taken]
    if not hidden:
        raise ConfigError(
            "optimizer.name is 'muon'; the model has no hidden matrix to train with it"
        )
    muon = torch.optim.Muon(
        hidden,
        lr=section.lr,
        weight_decay=section.weight_decay,
        adjust_lr_fn="match_rms_adamw",  # one learning rate serves both
    )
    return OptimizerGroup([muon, *([_adamw(rest, section)] if rest else [])])


def _refuse_untrainable(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = ""
        if parameter.layout != torch.strided:
            kind = f"is {parameter.layout}"
        elif parameter.dtype.itemsize == 1:
            kind = f"is of {parameter.dtype}"
        elif 0 in (s for n, s in zip(parameter.shape, parameter.stride(), strict=True) if n > 1):
            kind = "is an expanded view, whose numbers share memory"
        if kind:
            raise ConfigError(
                f"model: the parameter {name} {kind.replace('torch.', '')}, which the optimizer "
                "cannot update; freeze it in the factory (requires_grad_(False)) or make it an "
                "ordinary tensor"
            )
    for path, module in model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(
            module, nn.Embedding | nn.EmbeddingBag
        ):
            raise ConfigError(
                f"model: {path} is a {type(module).__name__} with sparse=True, whose gradients the "
                "optimizer cannot use; leave sparse out"
            )


def hidden_matrices(model: nn.Module) -> list[torch.Tensor]:
    """Return the weights that Muon is made for (https://kellerjordan.github.io/posts/muon).

    Two-dimensional weights of linear layers, save for embeddings, what is tied to one, and layers
    with `head` or `embed` in their name, which read tokens or write logits.
    """
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    found: dict[int, torch.Tensor] = {}
    for name, module in model.named_modules():
        outer = "head" in name.rpartition(".")[2] or "embed" in name
        if isinstance(module, nn.Linear) and not outer and id(module.weight) not in embedded:
            found[id(module.weight)] = module.weight
    return [weight for weight in found.values() if weight.requires_grad]


def _adamw(parameters: Sequence[torch.Tensor], section: "OptimizerConfig") -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": section.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    try:
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=section.lr,
            betas=section.betas,
            eps=section.eps,
            fused=section.fused,
        )
    except RuntimeError as error:
        raise ConfigError(f"optimizer.fused is {section.fused}: {error}") from error


def inherit(
    model: nn.Module, optimizer: torch.optim.Optimizer, inherited: Mapping[str, Any]
) -> None:
    """Let a run taken up from Speedtronic 2.0 go on as it was: what it never trained is frozen, and
    all that it trained decays, vectors too.

    Args:
        inherited: `frozen`, names of parameters; kept in every checkpoint of such a run.
    """
    for name in inherited["frozen"]:
        model.get_parameter(name).requires_grad_(False)
    decay = max(group["weight_decay"] for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["weight_decay"] = decay


class OptimizerGroup(torch.optim.Optimizer):
    """Combines several optimizers over disjoint parameters into one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        # Not the base's own: the groups, and the state, are those of the parts.
        self.optimizers = optimizers
        self.param_groups = [group for part in optimizers for group in part.param_groups]
        self.defaults = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.optimizers:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load each part's state; raises ValueError or KeyError, as torch's, if they do not fit."""
        saved = state["parts"]
        if len(saved) != len(self.optimizers):
            raise ValueError(f"{len(saved)} optimizers are stored, {len(self.optimizers)} are here")
        for part, part_state in zip(self.optimizers, saved, strict=True):
            part.load_state_dict(part_state)
        # Loading makes new groups.
        self.param_groups = [group for part in self.optimizers for group in part.param_groups]
