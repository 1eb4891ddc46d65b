"""Reads a checkpoint of Speedtronic 2.0 without running code, and converts its state to today's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from speedtronic.checkpoint.untrusted_payload import read_untrusted
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError, RestoreError
from speedtronic.legacy.config import translate
from speedtronic.legacy.facts import check_run, check_weights
from speedtronic.training.state import TrainState
from speedtronic.training.weights import refuse_unfit

State = dict[str, Any]

# The reference model's modules, part by part of their names.
_RENAMED = {
    "wte": "embedding",
    "h": "blocks",
    "ln1": "attention_norm",
    "attn": "attention",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "ln2": "mlp_norm",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "ln_f": "norm",
    "lm_head": "head",
}

# 2.0 took a linear layer for one of the ends of a model by these parts of its name.
_ENDS = {
    "embed",
    "embedding",
    "wte",
    "wpe",
    "lm_head",
    "classifier",
    "output",
    "output_proj",
    "score",
    "score_proj",
    "head",
}

# Where samples come from; 2.0 read none of these sources as they are read today.
_SOURCE = ("text_path", "tokenizer", "dataset", "dataset_args", "synthetic", "num_tokens")


def read(data: bytes) -> State:
    """Read the state of a run from a payload's bytes, tensors on the CPU. Nothing is executed.

    Raises:
        CorruptError: it does not load, needs code to load, lacks a key that a run needs, or holds
            something that 2.0 never wrote.
    """
    state = read_untrusted(data)
    check_run(state)
    return state


def read_weights(data: bytes) -> State:
    """Read the weights in a `.pt` of any version, under today's names. Nothing is executed.

    Raises:
        CorruptError: it does not load, needs code to load, or holds no weights.
    """
    state = read_untrusted(data)
    if isinstance(state.get("model"), dict):  # what get_extra_state returned is no weight
        model = {k: x for k, x in state["model"].items() if not str(k).endswith("_extra_state")}
        state = {**state, "model": model}
    check_weights(state)
    return weights(state)


def weights(state: State) -> State:
    """Return the model's state under today's names; a user's own model keeps its names."""
    model: State = state["model"]
    if not any(name.startswith("transformer.h.") for name in model):
        return model
    return {_rename(name): value for name, value in model.items()}


def convert(old: State, live: TrainState, config: SpeedtronicConfig) -> State:
    """Return the state that a checkpoint of today would hold at the same point of the run.

    The optimizer's state says under `inherited` what 2.0's optimizer did not hold, and so never
    trained; see `speedtronic.training.optimizers.inherit`.

    Args:
        old: what `read` returned.
        live: freshly built for `config`; gives what 2.0 did not store. Its position is moved.
        config: of today, for this run.

    Raises:
        RestoreError: the run cannot go on as it was in what `live` is.
    """
    model = weights(old)
    refuse_unfit(live.model, model)
    _refuse_other_optimizers(old, config)
    today = live.state_dict()
    optimizer = _optimizer(old["optimizer"], live)
    stored = old.get("config") or today
    horizon = stored["scheduler"]["max_steps"]  # it is not in the schedule's own state
    base_lrs = old["scheduler"]["base_lrs"][:1] * len(optimizer["param_groups"])
    schedule = {"last_epoch": old["scheduler"]["last_epoch"], "base_lrs": base_lrs}
    live.batches.load_state_dict({"samples": old["samples"]}, any_order=True)
    return {
        **today,
        "model": model,
        "optimizer": optimizer,
        "scheduler": {**today["scheduler"], **schedule, "max_steps": horizon},
        "scaler": old.get("scaler") or today["scaler"],
        "step": old["step"],
        "samples": old["samples"],
        "tokens": old["tokens"],
        "data": live.batches.state_dict(),
        "rng": _rng(old["rng"], today["rng"]),
        "config": _config(old.get("config"), config),
        "precision": {"mode": (old.get("precision") or {}).get("mode", config.precision.mode)},
    }


def trained_by_adamw(model: nn.Module) -> list[str]:
    """Return the names of the parameters that 2.0.0's `adamw` trained, in its order.

    It sorted them for Muon first, and left Muon's share, the matrices of hidden linear layers, to
    no optimizer at all; unless nothing else was there.
    """
    trainable = [name for name, x in model.named_parameters() if x.requires_grad]
    return [name for name in trainable if not _is_hidden_matrix(model, name)] or trainable


def _is_hidden_matrix(model: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    matrix = model.get_parameter(name).dim() == 2 and not leaf.endswith("bias")
    if role := getattr(owner, "_speedtronic_optimizer_role", None):
        return matrix and role == "muon"
    kind = type(owner).__name__.lower()
    at_an_end = "embedding" in kind or "norm" in kind or _ENDS & set(name.lower().split("."))
    return matrix and isinstance(owner, nn.Linear) and not at_an_end


def _refuse_other_optimizers(old: State, config: SpeedtronicConfig) -> None:
    groups = old["optimizer"]["param_groups"]
    section = (old.get("config") or {}).get("optimizer") or {}
    kind = "muon" if any(group.get("algorithm") for group in groups) else "adamw"
    if section.get("cautious"):
        kind = f"cautious {kind}"
    if kind != "adamw":
        raise RestoreError(
            f"the run was trained with 2.0's {kind}, which nothing here computes; begin a run with "
            "its weights by --init-from: see docs/migration.md"
        )
    if config.optimizer.name != "adamw" or len(groups) != 1:
        raise RestoreError(
            f"the run was trained with {len(groups)} group(s) of adamw; expected one, and "
            f"optimizer.name to be 'adamw', not {config.optimizer.name!r}"
        )


def _rename(name: str) -> str:
    parts = name.removeprefix("transformer.").split(".")
    return ".".join(_RENAMED.get(part, part) for part in parts)


def _optimizer(old: State, live: TrainState) -> State:
    """Move the optimizer's state from 2.0's one group to the groups of the live optimizer."""
    [group] = old["param_groups"]
    held = trained_by_adamw(live.model)
    if len(held) != len(group["params"]):
        raise RestoreError(
            f"the optimizer of 2.0 held {len(group['params'])} parameters, expected {len(held)}"
        )
    by_name = {
        name: old["state"][index]
        for name, index in zip(held, group["params"], strict=True)
        if index in old["state"]
    }
    names = {id(x): name for name, x in live.model.named_parameters()}
    today = live.optimizer.state_dict()
    state = {
        index: by_name[names[id(x)]]
        for live_group, packed in zip(
            live.optimizer.param_groups, today["param_groups"], strict=True
        )
        for x, index in zip(live_group["params"], packed["params"], strict=True)
        if names[id(x)] in by_name
    }
    frozen = [name for name in names.values() if name not in held]
    return {**today, "state": state, "inherited": {"frozen": frozen}}


def _rng(old: State, today: State) -> State:
    """Convert random states to the form that `capture_rng` returns."""
    version, words, gauss = old["python"]
    rng = {
        **today,
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "torch": old["torch"],
    }
    if old.get("numpy") is not None:  # it was not installed
        name, words, position, has_gauss, cached = old["numpy"]
        rng["numpy"] = {
            "name": name,
            "words": words.words,
            "position": position,
            "has_gauss": has_gauss,
            "gauss": cached,
        }
    if old.get("cuda"):
        rng["cuda"] = old["cuda"]
    return rng


def _config(old: Any, config: SpeedtronicConfig) -> State:
    """Translate the stored configuration.

    Data sources and a user's own model are taken from `config`, for 2.0 gave those keys another
    meaning.
    """
    if not isinstance(old, Mapping):
        return config.to_dict(redact_secrets=True)
    now = config.to_dict()
    data = {key: value for key, value in old["data"].items() if key not in _SOURCE}
    values, _ = translate({**old, "data": data})
    values["data"] |= {key: now["data"][key] for key in _SOURCE}
    if not config.model.is_reference:
        values["model"] = now["model"]
    try:
        return SpeedtronicConfig.from_dict(values).to_dict(redact_secrets=True)
    except ConfigError as error:
        raise RestoreError(
            f"the stored configuration of 2.0 does not hold today: {error}"
        ) from None
