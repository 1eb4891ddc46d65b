"""Compute the loss on held-out data, without changing the run."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from speedtronic.liveness import report_progress
from speedtronic.training.batch import compute_loss, count_labels, has_labels, to_device
from speedtronic.training.metrics import Hook
from speedtronic.training.precision import Precision
from speedtronic.training.rng import capture_rng, restore_rng
from speedtronic.training.state import TrainState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """Says what to evaluate and when.

    Attributes:
        every_steps: updates from one validation to the next.
        batches: gives the same held-out batches at every call.
    """

    every_steps: int
    batches: Callable[[], Iterable[Any]]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Callable[[], Iterable[Any]],
    precision: Precision,
    waiting: AbstractContextManager[Any] | None = None,
) -> float:
    """Return the mean loss over the labels of what `batches` gives, in evaluation mode.

    The random state and the mode of each module are afterwards what they were before, also when
    it is interrupted in the context `waiting`.
    A batch whose labels are all ignored counts as little as it does in training.

    Returns:
        NaN if the model gave one, or if no label counts.
    """
    device = precision.device
    modes = {module: module.training for module in model.modules()}
    rng = capture_rng(device)
    model.eval()
    total, weight = 0.0, 0
    try:
        with waiting or nullcontext():
            for number, batch in enumerate(batches()):
                report_progress("validating, batches", number + 1)
                num_labels = count_labels(batch)
                if num_labels == 0 and has_labels(batch):  # its mean over no labels would be NaN
                    continue
                with precision.autocast():
                    loss = compute_loss(model, to_device(batch, device))
                total += float(loss) * (num_labels or 1)
                weight += num_labels or 1
    finally:
        for module, training in modes.items():
            module.training = training
        restore_rng(rng, device)
    return total / weight if weight else math.nan


def validate(
    state: TrainState,
    validation: Validation,
    precision: Precision,
    hooks: Sequence[Hook],
    waiting: AbstractContextManager[Any],
) -> None:
    """Evaluate the model, record the loss in `state` and report it to the hooks.

    Raises:
        Interrupted: a signal came in the context `waiting`; nothing was recorded.
    """
    val_loss = evaluate(state.model, validation.batches, precision, waiting)
    if not math.isfinite(val_loss):
        logger.warning(
            "the validation loss of step %d is %s; the step counts as not validated, and "
            "training goes on",
            state.step,
            val_loss,
        )
    state.record_validation(val_loss if math.isfinite(val_loss) else None)
    for hook in hooks:
        hook.on_event("validation", {"step": state.step, "val_loss": state.val_loss})
