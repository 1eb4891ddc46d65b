"""Digests: of a file's bytes, and of the training state in it.

`digest` (xxh3-128 over the file) answers "are these the bytes that were saved". `state_digest`
answers "would these two runs go on identically": it covers what determines the rest of the run, and
no path, configuration or time, so two runs that agree have the same one. xxh3 is Y. Collet's
xxHash, https://github.com/Cyan4973/xxHash; it guards against faults, not against forgery.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import torch
import xxhash

# The keys of a checkpoint that determine the rest of the run.
STATE_KEYS = (
    "model",
    "modes",
    "optimizer",
    "scheduler",
    "scaler",
    "rng",
    "data",
    "step",
    "samples",
    "tokens",
    "skipped_updates",
    "coordinator",
)


class DigestingWriter:
    """A file object that digests and counts what passes through it on the way to `file`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        view = memoryview(data)
        self.size_bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return f"xxh3_128:{self._hash.hexdigest()}"


def bytes_digest(data: bytes) -> str:
    """The digest of a file whose content is `data`."""
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


def state_digest(state: Mapping[str, Any]) -> str:
    """Identify the training state in a checkpoint, independent of how and where it is stored.

    xxh3-128 over (path, type, shape, raw bytes) of every leaf under `STATE_KEYS`, sorted by path.
    Tensors may be on any device; tied tensors count under every name. The data position is its
    counters; the private state of a user's own data source (`data/source`) is left out.
    """
    parts = {key: state.get(key) for key in STATE_KEYS}
    if isinstance(parts["data"], Mapping):
        parts["data"] = {key: x for key, x in parts["data"].items() if key != "source"}
    leaves = sorted(_leaves(parts, ""), key=lambda leaf: leaf[0])
    hasher = xxhash.xxh3_128()
    for path, value in leaves:
        kind, content = _encoded(path, value)
        header = f"{path}\0{kind}\0".encode()
        hasher.update(struct.pack("<qq", len(header), memoryview(content).nbytes))
        hasher.update(header)
        hasher.update(content)
    return f"state1:{hasher.hexdigest()}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield path, len(value)
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{type(key).__name__[0]}:{key}")
    elif isinstance(value, list | tuple):
        yield path, len(value)
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index:09d}")
    else:
        yield path, value


def _encoded(path: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return f"{value.dtype}{list(value.shape)}", flat.view(torch.uint8).numpy()
    if value is None or isinstance(value, bool | int | str):
        return type(value).__name__, repr(value).encode()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    raise TypeError(f"{path}: a checkpoint cannot hold a {type(value).__name__}")
