"""Convert the states of the random generators to tensors and numbers, and back.

Nothing here needs pickle, so a checkpoint loads with `weights_only=True`.
"""

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from speedtronic.errors import RestoreError

logger = logging.getLogger(__name__)


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, those of every device included."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Capture the global generators' states: Python, NumPy, torch on the CPU and on `device`.

    Returns:
        `python` and `numpy`: words (int64 tensor), position and the cached Gaussian; `torch`: uint8
        tensor; `cuda`: list of uint8 tensors, one a device, or `mps`: uint8 tensor, when in use.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "words": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state_all()
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to what `capture_rng` returned.

    The state of a device that is not in use here is skipped with a warning.

    Raises:
        RestoreError: a generator refused its state; training on would not be exact.
    """
    try:
        python, numpy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        words = numpy["words"].numpy().astype(np.uint32)
        np.random.set_state(
            (numpy["name"], words, numpy["position"], numpy["has_gauss"], numpy["gauss"])
        )
        torch.set_rng_state(state["torch"])
        _restore_device(state, device)
    except RestoreError:
        raise
    except Exception as error:
        raise RestoreError(f"a random number generator cannot be restored: {error}") from error


def rng_restorer(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the global generators to their present states.

    For this process only, and so quick (some 20 us) that every update can have one.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if device.type == "cuda" else []
    mps = torch.mps.get_rng_state() if device.type == "mps" else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)

    return restore


def _restore_device(state: dict[str, Any], device: torch.device) -> None:
    if "cuda" in state:
        if device.type == "cuda" and torch.cuda.device_count() >= len(state["cuda"]):
            torch.cuda.set_rng_state_all(state["cuda"])
        else:
            _warn_skipped(f"{len(state['cuda'])} CUDA devices", device)
    if "mps" in state:
        if device.type == "mps":
            torch.mps.set_rng_state(state["mps"])
        else:
            _warn_skipped("the mps device", device)


def _warn_skipped(what: str, device: torch.device) -> None:
    logger.warning(
        "the random state of %s is in the checkpoint but not in use here (%s): skipped; what that "
        "device drew will be drawn anew",
        what,
        device,
    )
