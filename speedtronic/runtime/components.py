"""Builds data, model and optimizer as configured, before anything is written."""

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from speedtronic.config import SpeedtronicConfig
from speedtronic.data import BatchLoader, build_loader, validation_batches
from speedtronic.errors import ConfigError
from speedtronic.model import build_model
from speedtronic.model.initial_modes import refuse_lazy, settle_modes
from speedtronic.runtime.environment import describe_environment
from speedtronic.training.finite_check import FiniteCheck
from speedtronic.training.model_check import refuse_unsavable
from speedtronic.training.optimizers import build_optimizer
from speedtronic.training.precision import Precision, resolve_device, resolve_precision
from speedtronic.training.rng import seed_all
from speedtronic.training.schedules import Schedule
from speedtronic.training.state import TrainState
from speedtronic.training.validation import Validation


@dataclass(frozen=True)
class Components:
    """Holds the objects that a run trains and trains with, at step 0.

    Attributes:
        precision: number format, and the device.
        loader: of the training data.
        state: model, optimizer, schedule and counters.
        check_finite: checks the model for NaN and infinity before each save.
        validation: what to evaluate and when, if anything.
        data_fingerprint: of the training data.
        environment: what the numbers depend on besides.
    """

    precision: Precision
    loader: BatchLoader
    state: TrainState
    check_finite: FiniteCheck
    validation: Validation | None
    data_fingerprint: str
    environment: dict[str, Any]


def build_components(config: SpeedtronicConfig) -> Components:
    """Build all components; seeds the global random generators first, for the initial weights.

    Raises:
        UsageError: device, data or model cannot be used.
    """
    device = resolve_device(config.run.device)
    precision = resolve_precision(config.precision.mode, device)
    loader = build_loader(config, pin_memory=device.type == "cuda")
    every_steps = config.validation.every_steps
    validation = every_steps and Validation(every_steps, validation_batches(config))
    state = _build_state(config, precision, loader)
    return Components(
        precision=precision,
        loader=loader,
        state=state,
        check_finite=FiniteCheck(state.model),
        validation=validation or None,
        data_fingerprint=loader.fingerprint(),
        environment=describe_environment(device, precision=precision.mode, compiled=config.compile),
    )


def _build_state(
    config: SpeedtronicConfig, precision: Precision, loader: BatchLoader
) -> TrainState:
    seed_all(config.run.seed)
    model = build_model(config.model)
    refuse_lazy(config.model.name, model)
    model.to(precision.device)
    settle_modes(model)
    if config.checkpoint.enabled:
        refuse_unsavable(model)
    if config.gradient_checkpointing:
        _checkpoint_gradients(model)
    optimizer = build_optimizer(model, config)
    schedule = Schedule(
        optimizer,
        name=config.scheduler.name,
        warmup_steps=config.scheduler.warmup_steps,
        max_steps=config.scheduler.max_steps or config.run.max_steps,
        min_lr_ratio=config.scheduler.min_lr_ratio,
    )
    return TrainState(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scaler=precision.grad_scaler(),
        batches=loader,
        device=precision.device,
    )


def _checkpoint_gradients(model: nn.Module) -> None:
    """Switch gradient checkpointing on, by our protocol or by Hugging Face's."""
    ours: Any = getattr(model, "set_gradient_checkpointing", None)
    theirs: Any = getattr(model, "gradient_checkpointing_enable", None)
    if ours is None and theirs is None:
        raise ConfigError(
            f"gradient_checkpointing is true, but {type(model).__name__} has no method "
            "set_gradient_checkpointing(enabled) or gradient_checkpointing_enable()"
        )
    try:
        if ours is not None:
            ours(True)
        elif "gradient_checkpointing_kwargs" in inspect.signature(theirs).parameters:
            # Without re-entrance, which needs inputs with gradients: LoRA's have none.
            theirs(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            theirs()
    except ValueError as error:  # a model of theirs that does not support it
        raise ConfigError(f"gradient_checkpointing is true: {error}") from error
