"""Call any model with any batch, and take the loss from what it returns.

A batch is a dict, a tuple or list, or a tensor. Labels are `batch["labels"]` or the second item; a
label of -100 does not count.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from speedtronic.errors import UsageError

IGNORED_LABEL = -100


def to_device(batch: Any, device: torch.device) -> Any:
    """Copy a batch's tensors to `device`; from pinned memory the copy is asynchronous."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [to_device(value, device) for value in batch]
    return batch


def has_labels(batch: Any) -> bool:
    """Whether the batch has labels of which some may not count: integers."""
    labels = _labels(batch)
    return labels is not None and not labels.is_floating_point()


def count_labels(batch: Any) -> int:
    """Count the labels that are not ignored; 0 without integer ones. Call it on the CPU."""
    labels = _labels(batch)
    if labels is None or not has_labels(batch):
        return 0
    return int((labels != IGNORED_LABEL).sum())


def compute_loss(model: Any, batch: Any) -> Tensor:
    """Call the model with a batch on its device.

    Returns:
        The mean loss over the batch's labels: a scalar.

    Raises:
        UsageError: the model returned no loss, or one that is not a scalar tensor.
    """
    loss = output = _call(model, batch)
    if isinstance(output, Mapping):  # Hugging Face's outputs are mappings too
        loss = output.get("loss")
        if loss is None and output.get("logits") is not None:
            loss = _causal_loss(output["logits"], _labels(batch))
    elif isinstance(output, list | tuple) and output:
        loss = output[0]
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        what = _kind(loss if isinstance(loss, Tensor) else output)
        raise UsageError(
            f"the model returned {what}; expected a scalar loss tensor, a dict with loss or "
            "logits, or a tuple that starts with the loss"
        )
    if loss.is_complex():
        raise UsageError("the loss that the model returned is complex; return a real number")
    return loss


def _call(model: Any, batch: Any) -> Any:
    named = batch if isinstance(batch, Mapping) else {}
    placed = batch if isinstance(batch, list | tuple) else (batch,)
    if isinstance(batch, Mapping):
        placed = ()
    try:
        return model(*placed, **named)
    except IndexError as error:
        if "index out of range in self" not in str(error):
            raise
        raise UsageError(
            "a number in the batch is outside of an embedding of the model; its numbers are "
            f"{_ranges(batch)}. Give the model as many rows as the data have ids"
        ) from error
    except TypeError as error:
        if _within_model(error):
            raise
        raise UsageError(
            f"the model cannot be called with a batch, {_kind(batch)}: {error}; its forward takes "
            "the keys of a dict by name, the items of a tuple or list by place"
        ) from error


def _ranges(batch: Any) -> str:
    """Describe the range of each integer tensor in the batch."""
    items = (
        batch.items()
        if isinstance(batch, Mapping)
        else enumerate(batch if isinstance(batch, list | tuple) else (batch,))
    )
    whole = (
        f"{name}: {int(x.min())} to {int(x.max())}"
        for name, x in items
        if isinstance(x, Tensor) and x.numel() and not x.is_floating_point()
    )
    return ", ".join(whole)


def _within_model(error: Exception) -> bool:
    """Whether the model's code raised the error, and not the call of its forward."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    while trace is not None:
        parts = Path(trace.tb_frame.f_code.co_filename).parts
        if "torch" not in parts and parts[-2:] != ("training", "compiled.py"):
            return True
        trace = trace.tb_next
    return False


def _causal_loss(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Compute the cross entropy of logits (B, T, V) with labels (B, T), already shifted."""
    if labels is None or logits.shape[:-1] != labels.shape:
        shape = None if labels is None else list(labels.shape)
        raise UsageError(
            f"the model returned logits of shape {list(logits.shape)} and no loss; the batch has "
            f"labels of shape {shape}, expected one label a position"
        )
    return F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL
    )


def _labels(batch: Any) -> Tensor | None:
    labels = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    elif isinstance(batch, list | tuple) and len(batch) > 1:
        labels = batch[1]
    return labels if isinstance(labels, Tensor) else None


def _kind(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a dict with {', '.join(map(str, output)) or 'nothing'}"
    if isinstance(output, list | tuple):
        kinds = ", ".join(type(x).__name__ for x in output)
        return f"a {type(output).__name__} of {kinds or 'nothing'}"
    if isinstance(output, Tensor):
        return f"a tensor of shape {list(output.shape)}"
    return f"a {type(output).__name__}"
