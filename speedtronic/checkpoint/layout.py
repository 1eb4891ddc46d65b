"""Defines the file names in a checkpoint directory, and their order.

latest.json                 the pointer
step_000000000004.pt        payload
step_000000000004.json      manifest: its presence commits the payload
step_000000000004.pin       protects step 4 from retention
quarantine/                 rejected files, each with its reason in a file beside it
legacy/                     files of Speedtronic 2.0, once its run was migrated

The names of the lock and of temporary files are in `speedtronic.storage.names`.
"""

import re
from collections.abc import Iterable, Iterator

POINTER = "latest.json"
QUARANTINE = "quarantine"
LEGACY = "legacy"

MAX_STEP = 10**12 - 1

_STEM = re.compile(r"step_([0-9]{12})")
_CHECKPOINT = re.compile(r"step_([0-9]{12})\.(pt|json)")
_PIN = re.compile(r"step_([0-9]{12})\.pin")


def payload_name(step: int) -> str:
    """Return the file name of a payload: `step_000000000004.pt` for step 4."""
    return f"step_{step:012d}.pt"


def manifest_name(step: int) -> str:
    """Return the file name of a manifest: `step_000000000004.json` for step 4."""
    return f"step_{step:012d}.json"


def pin_name(step: int) -> str:
    """Return the file name of a pin: `step_000000000004.pin` for step 4."""
    return f"step_{step:012d}.pin"


def pinned_steps(names: Iterable[str]) -> list[int]:
    """Return the steps that have a pin among `names`."""
    return [int(match.group(1)) for name in names if (match := _PIN.fullmatch(name))]


def step_of(name: str) -> int | None:
    """Return the step whose payload or manifest is called `name`; None for any other file."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match.group(1)) if match else None


def steps_newest_first(names: Iterable[str]) -> Iterator[int]:
    """Yield the steps that have a payload or manifest among `names`, newest first."""
    stems = {name[:17] for name in names if name.startswith("step_") and len(name) in (20, 22)}
    for stem in sorted(stems, reverse=True):  # always twelve digits, so names sort as numbers
        match = _STEM.fullmatch(stem)
        if match:
            yield int(match.group(1))
