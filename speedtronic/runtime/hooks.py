"""Builds the hooks that `logging.hooks` names: receivers of training events.

A hook has `on_event(event, payload)` and hears, in the training thread and in this order,

    run_started       step, run_id (None before the first save), config (secrets blanked)
    train_step        step, loss, lr, samples, tokens, tokens_per_s
    validation        step, val_loss
    checkpoint_saved  the fields of the pointer, save_stall_s, save_durable_s, save_bytes
    run_ended         step

A killed process sends no `run_ended`. What it logged after the last checkpoint is logged again by
the resumed run, to the bit; each built-in hook keeps one of the two.
"""

import difflib
import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.runtime.tensorboard import TensorBoard
from speedtronic.runtime.wandb import WandbOffline
from speedtronic.training.metrics import Hook
from speedtronic.training.precision import resolve_device
from speedtronic.training.rng import capture_rng, restore_rng
from speedtronic.user_code import call_factory, import_factory

logger = logging.getLogger(__name__)


def build_hooks(config: SpeedtronicConfig, output_dir: Path) -> list[Hook]:
    """Build the hooks, each wrapped so that it can neither stop nor alter training.

    They write below `output_dir`, which need not exist yet, and nothing before the first event.

    Raises:
        ConfigError: an unknown name, a missing package, or a factory that fails or makes no hook.
    """
    device = resolve_device(config.run.device)
    hooks: list[Hook] = []
    for name in dict.fromkeys(config.logging.hooks):
        state = capture_rng(device)
        hook = _build(name, config, output_dir)
        restore_rng(state, device)
        hooks.append(_Guarded(name, hook, device))
    return hooks


def _build(name: str, config: SpeedtronicConfig, output_dir: Path) -> Hook:
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        hook: Hook = call_factory(
            "logging.hooks",
            name,
            import_factory("logging.hooks", name),
            config,
            output_dir,
            shown={"config": config, "output_dir": output_dir},
        )
        if not callable(getattr(hook, "on_event", None)):
            raise ConfigError(
                f"logging.hooks names {name!r}, whose {type(hook).__name__} has no on_event"
            )
        return hook
    if name not in _BUILT_IN:
        near = difflib.get_close_matches(name, _BUILT_IN, n=1)
        hint = "".join(f"did you mean {known!r}? " for known in near)
        raise ConfigError(
            f"logging.hooks names {name!r}, which is no hook; {hint}allowed are "
            f"{', '.join(_BUILT_IN)} and package.module:factory"
        )
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # a folder of that name, such as W&B's own, is none
        raise ConfigError(
            f"logging.hooks names {name!r}, which is not installed; "
            f"pip install 'speedtronic-flows[{name}]'"
        )
    return _BUILT_IN[name](output_dir)


class _Guarded:
    """Wraps a hook: drops it after an exception, and restores the random state after each call."""

    def __init__(self, name: str, hook: Hook, device: torch.device) -> None:
        self._name = name
        self._hook: Hook | None = hook
        self._device = device

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        if self._hook is None:
            return
        state = capture_rng(self._device)
        try:
            self._hook.on_event(event, dict(payload))
        except Exception as error:
            logger.warning(
                f"hook {self._name} failed on {event} and is left out from here on; "
                f"training goes on: {type(error).__name__}: {error}",
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            self._hook = None
        finally:
            restore_rng(state, self._device)


_BUILT_IN: dict[str, Callable[[Path], Hook]] = {"tensorboard": TensorBoard, "wandb": WandbOffline}
