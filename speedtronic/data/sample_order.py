"""Compute the order of samples, a pure function of seed and position, so runs resume anywhere."""

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt

from speedtronic.errors import DataError

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

NUM_ROUNDS = 8
GOLDEN = 0x9E3779B97F4A7C15
MASK64 = 0xFFFFFFFFFFFFFFFF


def mix64(values: UInt64s) -> UInt64s:
    """Hash each uint64 so that every input bit reaches every output bit; one-to-one.

    The finalizer of splitmix64. Source: Steele, Lea and Flood 2014, Fast Splittable Pseudorandom
    Number Generators, with the shifts and factors of Stafford's variant 13.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys_for(seed: int, numbers: Int64s) -> UInt64s:
    """Return a uint64 key for each of `numbers` (int64 >= 0), unrelated between seeds, numbers."""
    seeded = mix64(np.full(numbers.shape, (seed * GOLDEN + GOLDEN) & MASK64, dtype=np.uint64))
    return mix64(seeded + numbers.astype(np.uint64) * np.uint64(GOLDEN))


def permute(offsets: Int64s, keys: UInt64s, size: int) -> Int64s:
    """Map each offset in [0, size) to its place in the permutation that its key names.

    A Feistel network is one-to-one on a grid of at least `size` cells; a result outside [0, size)
    goes through it again until it lands inside, which keeps that so. The grid has at most
    sqrt(size) cells too many, so this is rare.

    Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains (cycle walking).

    Args:
        offsets: int64 (N,), each in [0, size).
        keys: uint64 (N,).
        size: number of things in the permutation, >= 1.

    Returns:
        int64 (N,), in O(N) time and memory, whatever `size` is.
    """
    num_rows = math.isqrt(size - 1) + 1
    num_columns = -(-size // num_rows)
    cells = _feistel(offsets.astype(np.uint64), keys, num_rows, num_columns)
    while (outside := cells >= size).any():
        cells[outside] = _feistel(cells[outside], keys[outside], num_rows, num_columns)
    return cells.astype(np.int64)


def _feistel(cells: UInt64s, keys: UInt64s, num_rows: int, num_columns: int) -> UInt64s:
    """Move the row by a hash of the column, then the column by a hash of the row, and so on.

    Each move can be undone, so no two cells (uint64) end in one.
    """
    rows, columns = np.divmod(cells, num_columns)
    for turn in range(NUM_ROUNDS):
        turn_keys = mix64(keys + np.uint64(turn))
        if turn % 2 == 0:
            rows = (rows + mix64(turn_keys ^ columns) % num_rows) % num_rows
        else:
            columns = (columns + mix64(turn_keys ^ rows) % num_columns) % num_columns
    return rows * num_columns + columns


@dataclass(frozen=True)
class SampleOrder:
    """Maps positions to samples; epochs follow one another without end.

    A position counts the samples consumed before it, over all epochs. The order depends on the
    fields alone, never on a version of NumPy or torch.

    Attributes:
        num_samples: samples in the source.
        seed: names the order; any integer.
        shuffle: a new permutation each epoch, instead of the source's own order.
        drop_last: leave out, of each epoch, the samples that do not fill a whole step.
        target_batch_size: samples a step.

    Raises:
        DataError: there is no sample, or `drop_last` leaves none.
    """

    num_samples: int
    _: KW_ONLY
    seed: int
    shuffle: bool
    drop_last: bool
    target_batch_size: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise DataError("the data holds no sample")
        if self.epoch_samples < 1:
            raise DataError(
                f"data.drop_last leaves no sample: the data has {self.num_samples}, "
                f"data.target_batch_size is {self.target_batch_size}; "
                "lower it, set data.drop_last to false or give more data"
            )

    @property
    def epoch_samples(self) -> int:
        """Number of samples in one epoch: all, or those of whole steps with `drop_last`."""
        if not self.drop_last:
            return self.num_samples
        return self.num_samples // self.target_batch_size * self.target_batch_size

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the epoch and the source's index at each position, int64 (N,) each.

        Args:
            positions: int64 (N,), each >= 0.
        """
        epochs, offsets = np.divmod(np.asarray(positions, dtype=np.int64), self.epoch_samples)
        if not self.shuffle:
            return epochs, offsets
        return epochs, permute(offsets, keys_for(self.seed, epochs), self.num_samples)
