"""Seed the random draws inside the user's data as a function of seed, epoch and index.

Only the CPU's generators are touched: what a dataset draws on a GPU would be in the trainer's way.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from speedtronic.data.sample_order import keys_for


def seed_streams(seed: int, epoch: int, index: int) -> None:
    """Seed the global streams of Python, NumPy and torch for one item, unrelated to any other."""
    epoch_key = int(keys_for(seed, np.array([epoch]))[0])
    item_key = int(keys_for(epoch_key, np.array([index]))[0])
    # Python and NumPy have the same generator: from one key they would draw the same numbers.
    for_python, for_numpy, for_torch = (int(key) for key in keys_for(item_key, np.arange(3)))
    random.seed(for_python)
    np.random.seed([for_numpy & 0xFFFFFFFF, for_numpy >> 32])
    torch.default_generator.manual_seed(for_torch)


@contextmanager
def streams_kept() -> Iterator[None]:
    """Restore the global streams' states after the block, whatever it draws or seeds."""
    kept = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.default_generator.set_state(kept[2])


def streams_mark() -> tuple[Any, ...]:
    """Return a mark of the global streams; equal marks mean nothing was drawn in between."""
    of_numpy = np.random.get_state(legacy=False)["state"]
    of_torch = torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), of_numpy["pos"], of_numpy["key"].tobytes(), of_torch
