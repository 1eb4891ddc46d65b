"""What a sample is, and what a source of samples has to offer."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Sample = dict[str, Tensor]


class SampleSource(Protocol):
    """A fixed number of samples by index; the same index always gives the same sample."""

    def __len__(self) -> int:
        """Number of samples, the same for the whole run."""

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at `indices`, in that order; runs inside loader workers."""


def as_sample(tokens: np.ndarray) -> Sample:
    """Split T + 1 tokens into `input_ids` (T,) and `labels` (T,), the token after each; int64.

    Both are views of one copy of `tokens`.
    """
    block = torch.from_numpy(tokens.astype(np.int64))
    return {"input_ids": block[:-1], "labels": block[1:]}
