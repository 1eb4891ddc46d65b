"""Generate samples that a model can learn, for runs without any data."""

from collections.abc import Sequence

import numpy as np

from speedtronic.data.fingerprint import fingerprint
from speedtronic.data.sample_order import keys_for, mix64
from speedtronic.data.types import Batch, Sample, as_sample, stack
from speedtronic.errors import DataError

DEFAULT_NUM_TOKENS = 100_000
MAX_STRIDE = 4


class SyntheticSource:
    """Generates arithmetic progressions modulo the vocabulary, with a start and stride a sample.

    With few strides a token leaves few choices for the next, so the loss falls within some steps.
    A sample depends on (seed, index) alone, never on a random stream.

    Args:
        num_tokens: tokens in all, 100_000 if None; the last one is only ever a label.
        block_size: tokens in a sample.
        vocab_size: tokens are 0 .. vocab_size - 1.
        seed: names the samples; any integer.

    Raises:
        DataError: there are not enough tokens for one sample.
    """

    def __init__(
        self, *, num_tokens: int | None = None, block_size: int, vocab_size: int, seed: int
    ) -> None:
        self.num_tokens = DEFAULT_NUM_TOKENS if num_tokens is None else num_tokens
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.seed = seed
        if len(self) < 1:
            raise DataError(
                f"data.num_tokens: {self.num_tokens} is less than the {block_size + 1} tokens that "
                f"one sample needs (data.block_size {block_size} + 1); raise it"
            )

    def __len__(self) -> int:
        return (self.num_tokens - 1) // self.block_size

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        key = keys_for(self.seed, np.array([index]))
        start = int(key[0]) % self.vocab_size
        stride = 1 + int(mix64(key)[0]) % MAX_STRIDE
        return as_sample((start + stride * np.arange(self.block_size + 1)) % self.vocab_size)

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        return stack([self[index] for index in indices])

    def fingerprint(self) -> str:
        """Return a fingerprint of the kind alone; configuration keys tell the rest."""
        return fingerprint(kind="synthetic")
