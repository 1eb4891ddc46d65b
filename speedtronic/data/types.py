"""Define what samples, batches and loaders are."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Sample = dict[str, Tensor]

Batch = Any
"""Samples put together along a new first dimension: a dict, list or tuple of tensors, or a tensor.
Ours are dicts; what a dataset of one's own gives is between it and its model."""


class SampleSource(Protocol):
    """Gives a fixed number of samples by index; index and epoch always give the same one."""

    def __len__(self) -> int:
        """Number of samples, the same for the whole run."""

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        """Return the samples at `indices`, each for its epoch, in order; runs in loader workers.

        Sources that draw nothing give the same in every epoch.
        """

    def fingerprint(self) -> str:
        """Return `xxh3_128:<hex>`, which changes with the samples, not when their files move."""


class BatchLoader(Protocol):
    """Gives the trainer micro batches without end, from any kind of data.

    Attributes:
        position: samples handed to the trainer so far, over all epochs.
    """

    position: int

    def next_batch(self) -> Batch:
        """Return the next micro batch, on the CPU; advances the position.

        Raises:
            DataError: the data cannot give it; the position stays, safe to call again.
        """

    def mark(self) -> None:
        """Remember the position for `back_to_mark`; quick, called before every update."""

    def back_to_mark(self) -> None:
        """Rewind to the mark, also after `next_batch` was interrupted."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position for a checkpoint: numbers, and `source` where data have a state of
        their own, as what `torch.load(weights_only=True)` takes."""

    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None:
        """Continue at a saved position.

        Args:
            state: what `state_dict` returned.
            any_order: go on although the position counts in another order: the data were changed
                on purpose.

        Raises:
            RestoreError: the saved position counts in another order; nothing was changed.
        """

    def fingerprint(self) -> str:
        """Return the `SampleSource.fingerprint` of what is loaded."""

    def close(self) -> None:
        """End worker processes now; the next batch starts new ones."""


def as_sample(tokens: np.ndarray) -> Sample:
    """Split T + 1 tokens into `input_ids` (T,) and `labels` (T,), the token after each; int64.

    Both are views of one copy of `tokens`.
    """
    block = torch.from_numpy(tokens.astype(np.int64))
    return {"input_ids": block[:-1], "labels": block[1:]}


def stack(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Stack samples of equal shapes to one batch, each tensor int64 (B, T)."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
