"""Make one optimizer update out of micro batches."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from speedtronic.errors import DataError, NonFiniteError, UsageError
from speedtronic.liveness import report_progress
from speedtronic.shutdown import Interrupted, InterruptibleWait
from speedtronic.training.batch import compute_loss, count_labels, to_device
from speedtronic.training.compilation import Compiled
from speedtronic.training.module_snapshot import ForwardSnapshot
from speedtronic.training.precision import Precision
from speedtronic.training.state import TrainState

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 100


@dataclass
class StopRequest:
    """Whether training is to stop; set by a signal handler, so without a lock."""

    requested: bool = False


class OptimizerUpdate:
    """Fetches micro batches, computes their gradients and makes the optimizer step.

    Args:
        state: what is trained.
        precision: how the forward pass computes.
        accumulation: micro batches to one update, >= 1.
        grad_clip: largest norm of the gradient, or None.
        compiled: run the model through torch.compile.
        waiting: the context in which data are waited for, so that a signal can interrupt that.
        stop: requested while an update is made, it interrupts the update if that can be undone.

    Attributes:
        trainable: the model's parameters that the optimizer has, in the model's order.
    """

    def __init__(
        self,
        state: TrainState,
        *,
        precision: Precision,
        accumulation: int,
        grad_clip: float | None,
        compiled: bool,
        waiting: InterruptibleWait,
        stop: StopRequest,
    ) -> None:
        self._state = state
        self._precision = precision
        self._accumulation = accumulation
        self._grad_clip = grad_clip
        self._waiting = waiting
        self._stop = stop
        self._model = Compiled(state.model, state.device) if compiled else state.model
        # Not by requires_grad, which may change: what is frozen has no gradient and counts nothing.
        optimized = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
        self.trainable = [p for p in state.model.parameters() if id(p) in optimized]
        self._first_update = True
        self._skipped_in_a_row = 0

    def run(self) -> tuple[torch.Tensor, bool]:
        """Make one optimizer update over `accumulation` micro batches, weighted by their labels.

        Returns:
            The mean loss, a scalar tensor on the device, not synchronized; and whether the update
            was made, which is not so when the scaler found infinities.

        Raises:
            Interrupted: a stop came before the first gradient, or could be undone after; the
                caller rewinds random streams and data.
        """
        state = self._state
        state.mark()
        batches = self._fetch()
        snapshot = ForwardSnapshot(state.model) if self._accumulation > 1 else None
        counts = [count_labels(batch) for batch in batches]
        state.optimizer.zero_grad(set_to_none=True)
        total: torch.Tensor | None = None
        for number, weight in enumerate(self._weights(batches, counts)):
            # The first update may compile, and sets up the device and its libraries.
            report_progress(
                "training, micro batches", number + 1, len(batches), computing=self._first_update
            )
            if self._stop.requested and snapshot is not None and snapshot.can_restore:
                snapshot.restore()
                state.optimizer.zero_grad(set_to_none=True)
                raise Interrupted
            if weight == 0:  # its mean over no labels would be NaN
                continue
            with self._precision.autocast():
                loss = compute_loss(self._model, self._on_device(batches[number]))
                if not loss.requires_grad:
                    raise UsageError(
                        "the loss that the model returned depends on no parameter that requires a "
                        "gradient; is it detached, made under no_grad, or is all of it frozen?"
                    )
                loss = loss if weight == 1 else loss * weight
            (state.scaler.scale(loss) if state.scaler else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        self._first_update = False
        state.tokens += sum(counts)
        return total, self._apply_gradients()

    def _fetch(self) -> list[Any]:
        """Fetch the micro batches of an update; `Interrupted` if a stop comes meanwhile."""
        with self._waiting:
            if self._stop.requested:
                raise Interrupted
            try:
                return [self._next_batch(number) for number in range(self._accumulation)]
            except Exception:
                # Processes that the data start themselves may end on a signal.
                if self._stop.requested:
                    raise Interrupted from None
                raise

    def _next_batch(self, number: int) -> Any:
        report_progress("waiting for data, micro batches", number + 1, self._accumulation)
        return self._state.batches.next_batch()

    def _weights(self, batches: list[Any], counts: list[int]) -> list[float]:
        """Return the share of each micro batch in the mean over all labels of the update."""
        if any(counts):
            return [count / sum(counts) for count in counts]
        if all(isinstance(batch, dict) and "labels" in batch for batch in batches):
            labels = batches[0]["labels"]
            if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
                raise DataError(
                    f"every label of the update after step {self._state.step} is -100; there is "
                    "nothing to learn from its samples"
                )
        return [1 / len(batches)] * len(batches)

    def _apply_gradients(self) -> bool:
        state, scaler = self._state, self._state.scaler
        if self._grad_clip is not None:
            if scaler is not None:
                scaler.unscale_(state.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trainable, self._grad_clip)
        if scaler is None:
            state.optimizer.step()
        else:
            scale = scaler.get_scale()
            scaler.step(state.optimizer)
            scaler.update()
            if scaler.get_scale() < scale:  # it found infinities and left the weights alone
                self._count_skipped()
                return False
            self._skipped_in_a_row = 0
        state.schedule.step()
        state.step += 1
        return True

    def _count_skipped(self) -> None:
        self._state.skipped_updates += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row were skipped after step "
                f"{self._state.step}, each for infinite gradients; lower optimizer.lr or set "
                "precision.mode to bf16 or fp32"
            )

    def _on_device(self, batch: Any) -> Any:
        device = self._state.device
        return batch if device.type == "cpu" else to_device(batch, device)


def warn_of_untrained(model: nn.Module, trainable: list[nn.Parameter]) -> bool:
    """Warn of a parameter that was frozen when the optimizer was made and is no longer.

    Returns:
        Whether there was one.
    """
    optimized = {id(parameter) for parameter in trainable}
    untrained = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in optimized
    ]
    if untrained:
        more = f" and {len(untrained) - 1} more" if len(untrained) > 1 else ""
        logger.warning(
            "model: %s%s requires a gradient and is NOT trained, for it was frozen, or not "
            "there, when the optimizer was made. Let the factory return it trainable and "
            "freeze it in the first forward pass; what is frozen there can be trained later",
            untrained[0],
            more,
        )
    return bool(untrained)
