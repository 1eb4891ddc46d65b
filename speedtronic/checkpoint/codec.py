"""State dict <-> the bytes of a payload.

The payload is what `torch.save` writes: a zip file that any PyTorch reads. Loading is always with
`weights_only=True`, so nothing in a file is ever executed.
"""

import io
import pickle
from typing import Any, BinaryIO, cast

import torch

from speedtronic.checkpoint.digest import DigestingWriter
from speedtronic.errors import CorruptError


def encode(state: dict[str, Any], file: BinaryIO) -> tuple[str, int]:
    """Write `state` to `file`, digesting on the way.

    Returns:
        The digest of the bytes written, and their number.
    """
    writer = DigestingWriter(file)
    torch.save(state, cast(BinaryIO, writer))  # torch only ever calls write and flush
    return writer.digest(), writer.size_bytes


def decode(data: bytes) -> dict[str, Any]:
    """The state dict in a payload's bytes, its tensors on the CPU.

    Raises:
        CorruptError: not a state dict, or one that would need to run code to load.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0] if str(error) else "unknown content"
        raise CorruptError(f"payload does not load with weights_only: {reason}") from None
    except Exception as error:  # torch raises a dozen kinds for damaged files
        raise CorruptError(f"payload does not load: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict):
        raise CorruptError(f"payload holds a {type(state).__name__}, expected a dict")
    return state
