"""Encodes a state dict as the bytes of a payload, and loads it again without running code.

The payload is what `torch.save` writes: a zip file that any PyTorch reads. Loading is always with
`weights_only=True`, so nothing in a file is ever executed. The zip's own CRC-32 is left out:
computing it costs more than hashing and writing, and the manifest's digest covers every byte.
"""

import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import torch

from speedtronic.checkpoint.digest import DigestingWriter
from speedtronic.checkpoint.reading import Payload
from speedtronic.errors import CorruptError, StorageError, UnsavableError
from speedtronic.machine_errors import OUT_OF_MEMORY, is_machine_failure


class CannotLoadError(StorageError):
    """The machine cannot load a payload at the moment; the payload itself may be good."""


def encode_payload(state: dict[str, Any], file: BinaryIO) -> tuple[str, int]:
    """Write `state` to `file`, and compute the digest of the bytes written.

    Returns:
        The digest of the bytes written, and their number.

    Raises:
        UnsavableError: `weights_only` would refuse a part of it; nothing was written.
    """
    assert sys.byteorder == "little", "a payload is little-endian"
    _refuse_unloadable(state, "")
    writer = DigestingWriter(file)
    with _without_crc32():
        torch.save(state, cast(BinaryIO, writer))  # torch only ever calls write and flush
    return writer.digest(), writer.size_bytes


def load_payload(file: BinaryIO, size_bytes: int, digest: str) -> dict[str, Any]:
    """Verify and load the state dict in a payload, with tensors on the CPU.

    Needs a few MiB of memory beyond the result.

    Args:
        file: the payload, at its beginning.
        size_bytes: as in the manifest.
        digest: as in the manifest.

    Raises:
        CorruptError: the bytes are others, hold no state dict, or need code to be run.
        OSError: the file cannot be read.
        CannotLoadError, MemoryError: the machine cannot load it now; it may be good.
    """
    verified = Payload(file, size_bytes, digest)
    return _loaded(cast(BinaryIO, verified), verified.map_location)


def decode_payload(data: bytes) -> dict[str, Any]:
    """Load the state dict in payload bytes that no manifest describes, with tensors on the CPU.

    Raises:
        CorruptError, CannotLoadError, MemoryError: as `load_payload`.
    """
    return _loaded(io.BytesIO(data), "cpu")


def _loaded(file: BinaryIO, map_location: Any) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location=map_location, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        raise _translated(error) from None
    if not isinstance(state, dict):
        raise CorruptError(f"payload holds a {type(state).__name__}, expected a dict")
    return state


def _translated(error: Exception) -> Exception:
    """Turn an exception of `torch.load` into an error of ours.

    All bytes of the payload are in memory, so an OSError comes from something else that torch
    opened, such as a module that it imported.
    """
    if any(words in str(error) for words in OUT_OF_MEMORY):
        return MemoryError(str(error))
    said = f"{type(error).__name__}: {error}"
    if is_machine_failure(error):
        return CannotLoadError(said)
    if isinstance(error, pickle.UnpicklingError):
        lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
        reason = lines[-1] if lines else "unknown content"
        return CorruptError(f"payload does not load with weights_only: {reason}")
    return CorruptError(f"payload does not load: {said}")  # torch raises a dozen types for damage


@contextmanager
def _without_crc32() -> Iterator[None]:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


# Exact types only: subclasses, such as torch's TorchVersion of str, are refused on loading.
_PLAIN = (dict, OrderedDict, list, tuple, str, int, float, bool, type(None))
_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _refuse_unloadable(value: Any, path: str) -> None:
    if type(value) in _TENSORS:
        return
    if type(value) not in _PLAIN:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UnsavableError(f"{path or 'the state'}: a checkpoint cannot hold a {kind}")
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        if type(key) not in _PLAIN:
            raise UnsavableError(f"{path}: a checkpoint cannot hold a key {key!r}")
        _refuse_unloadable(item, f"{path}/{key}")
