"""The optimizer, and the learning rate as a pure function of the step."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from speedtronic.errors import ConfigError

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig
    from speedtronic.config.sections import OptimizerConfig


def build_optimizer(model: nn.Module, config: "SpeedtronicConfig") -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101), or Muon with AdamW.

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
    return Together([muon, *([_adamw(rest, section)] if rest else [])])


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
    """The weights that Muon is made for (https://kellerjordan.github.io/posts/muon).

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


class Together(torch.optim.Optimizer):
    """Several optimizers over disjoint parameters, used as one."""

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
        """Raises ValueError or KeyError, as torch's own, when the state is of other optimizers."""
        saved = state["parts"]
        if len(saved) != len(self.optimizers):
            raise ValueError(f"{len(saved)} optimizers are stored, {len(self.optimizers)} are here")
        for part, part_state in zip(self.optimizers, saved, strict=True):
            part.load_state_dict(part_state)
        # Loading makes new groups.
        self.param_groups = [group for part in self.optimizers for group in part.param_groups]


class Schedule:
    """Linear warm-up, then constant or cosine (https://arxiv.org/abs/1608.03983) to a floor.

    A pure function of the step, so a resumed run has the learning rate of the uninterrupted one.

    Args:
        optimizer: whose groups' learning rates it sets; their present ones are the peaks.
        name: `cosine` or `constant`.
        warmup_steps: steps over which the rate rises to its peak.
        max_steps: the horizon, where the cosine ends; beyond it the floor holds.
        min_lr_ratio: the floor as a share of the peak.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        name: str,
        warmup_steps: int,
        max_steps: int,
        min_lr_ratio: float,
    ) -> None:
        self._optimizer = optimizer
        self._name = name
        self._warmup_steps = warmup_steps
        self._min_lr_ratio = min_lr_ratio
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.max_steps = max_steps
        self.last_epoch = 0
        self._apply()

    @property
    def lr(self) -> float:
        """The learning rate of the next update, of the first group."""
        return self._base_lrs[0] * self.factor(self.last_epoch)

    @property
    def has_floor(self) -> bool:
        """Whether the rate falls, and stays at its floor from `max_steps` on."""
        return self._name != "constant"

    @property
    def floor(self) -> float:
        """The learning rate at the horizon and beyond, of the first group."""
        return self._base_lrs[0] * self._min_lr_ratio

    def factor(self, step: int) -> float:
        """The share of the peak that the update after `step` completed ones uses."""
        if step < self._warmup_steps:
            return (step + 1) / self._warmup_steps
        if self._name == "constant":
            return 1.0
        span = max(1, self.max_steps - self._warmup_steps)
        progress = min(1.0, (step - self._warmup_steps) / span)
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self._min_lr_ratio + (1.0 - self._min_lr_ratio) * cosine

    def step(self) -> None:
        """One update was made."""
        self.last_epoch += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Position, horizon and peaks; `last_epoch` is torch's own name for the step."""
        return {
            "last_epoch": self.last_epoch,
            "max_steps": self.max_steps,
            "base_lrs": list(self._base_lrs),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up position and horizon; the optimizer's rates are set to what they give."""
        self.last_epoch = int(state["last_epoch"])
        self.max_steps = int(state["max_steps"])
        self._apply()

    def move_horizon(self, max_steps: int) -> None:
        """Let the cosine end at another step from here on."""
        self.max_steps = max_steps
        self._apply()

    def _apply(self) -> None:
        factor = self.factor(self.last_epoch)
        for group, base_lr in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base_lr * factor
