"""Names in a checkpoint directory, and how they order.

latest.json                 the pointer
step_000000000004.pt        payload
step_000000000004.json      manifest: its presence commits the payload
step_000000000004.pin       keeps retention away from it
quarantine/                 rejected files, the reason beside each
legacy/                     files of the older format, once its run was taken up

`speedtronic.storage.names` has the lock's and the temporaries'.
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
    """`step_000000000004.pt` for step 4."""
    return f"step_{step:012d}.pt"


def manifest_name(step: int) -> str:
    """`step_000000000004.json` for step 4."""
    return f"step_{step:012d}.json"


def pin_name(step: int) -> str:
    """`step_000000000004.pin` for step 4."""
    return f"step_{step:012d}.pin"


def pinned_steps(names: Iterable[str]) -> list[int]:
    """The steps that have a pin among `names`."""
    return [int(match.group(1)) for name in names if (match := _PIN.fullmatch(name))]


def step_of(name: str) -> int | None:
    """The step whose payload or manifest is called `name`; None for any other file."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match.group(1)) if match else None


def steps_newest_first(names: Iterable[str]) -> Iterator[int]:
    """The steps that have a file among `names`, newest first."""
    stems = {name[:17] for name in names if name.startswith("step_") and len(name) in (20, 22)}
    for stem in sorted(stems, reverse=True):  # twelve digits: by name is by number
        match = _STEM.fullmatch(stem)
        if match:
            yield int(match.group(1))
