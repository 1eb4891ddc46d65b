"""Computes two digests: of the bytes of a file, and of the training state in it.

`digest` (xxh3-128 over the file) answers "are these the bytes that were saved?". `state_digest`
answers "will these two runs continue identically?": it covers everything that determines the rest
of the run, and no path, configuration or time. xxh3 is Y. Collet's xxHash,
https://github.com/Cyan4973/xxHash; it guards against faults, not against forgery.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch
import xxhash

from speedtronic.errors import UnsavableError
from speedtronic.liveness import report_progress

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
# As above, for keys that not every run has. A state without one keeps the digest that it had before
# the key was introduced.
OPTIONAL_STATE_KEYS = ("module_state",)
# Keys of `data` that are left out: the state of a user's own source.
PRIVATE = ("source", "source_at", "source_draws_first")
PIECE_BYTES = 64 * 2**20  # written between two reports of progress


class DigestingWriter:
    """A file object that writes to `file`, and digests and counts the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            report_progress("writing a checkpoint, bytes", self.size_bytes)
            piece = view[start : start + PIECE_BYTES]
            self._hash.update(piece)
            self._file.write(piece)
            self.size_bytes += piece.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return f"xxh3_128:{self._hash.hexdigest()}"


def bytes_digest(data: bytes) -> str:
    """Return the digest of a file whose content is `data`."""
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


def state_digest(state: Mapping[str, Any]) -> str:
    """Return the digest of a training state, independent of how and where it is stored.

    xxh3-128 over (path, type, shape, raw bytes) of every leaf under `STATE_KEYS`, sorted by path.
    Tensors may be on any device; tied tensors count under every name. Of the data position only the
    counters count; the state of a user's own data source is left out (`PRIVATE`).
    """
    leaves = sorted(_leaves(determining_state(state), ""), key=lambda leaf: leaf[0])
    hasher = xxhash.xxh3_128()
    for path, value in leaves:
        kind, content = encode_leaf(path, value)
        header = f"{path}\0{kind}\0".encode()
        hasher.update(struct.pack("<qq", len(header), memoryview(content).nbytes))
        hasher.update(header)
        hasher.update(content)
    return f"state1:{hasher.hexdigest()}"


def determining_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint that determines the rest of the run."""
    parts = {key: state.get(key) for key in STATE_KEYS}
    parts |= {key: state[key] for key in OPTIONAL_STATE_KEYS if state.get(key)}
    if isinstance(parts["data"], Mapping):
        parts["data"] = {key: x for key, x in parts["data"].items() if key not in PRIVATE}
    return parts


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


def encode_leaf(path: str, value: Any) -> tuple[str, Any]:
    """Return the kind and the bytes of a leaf; two leaves are equal if and only if both are.

    Raises:
        UnsavableError: the digest is not defined for such a value.
    """
    if isinstance(value, torch.Tensor):
        try:
            return _encoded_tensor(value.detach().cpu())
        except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
            kind = f"{type(value).__qualname__} on {value.device}"
            raise UnsavableError(f"{path}: a checkpoint cannot hold this {kind}: {error}") from None
    if value is None or isinstance(value, bool | int | str):
        return type(value).__name__, repr(value).encode()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    raise UnsavableError(f"{path}: a checkpoint cannot hold a {type(value).__name__}")


def _encoded_tensor(value: torch.Tensor) -> tuple[str, Any]:
    kind = f"{value.dtype}{list(value.shape)}"
    if value.is_quantized:
        parts = [value.int_repr()]
        if value.qscheme() == torch.per_tensor_affine:
            kind += f" scale {value.q_scale()!r} zero point {value.q_zero_point()}"
        else:
            parts += [value.q_per_channel_scales(), value.q_per_channel_zero_points()]
            kind += f" per channel {value.q_per_channel_axis()}"
    elif value.layout == torch.strided:
        return kind, _bytes(value)
    elif value.layout == torch.sparse_coo:
        parts = [value._indices(), value._values()]
        kind += f" {value.layout} coalesced {value.is_coalesced()} of {value._nnz()}"
    else:
        rows = value.layout in (torch.sparse_csr, torch.sparse_bsr)
        outer = value.crow_indices() if rows else value.ccol_indices()
        inner = value.col_indices() if rows else value.row_indices()
        parts = [outer, inner, value.values()]
        kind += f" {value.layout} of {list(value.values().shape)}"
    return kind, np.concatenate([_bytes(part) for part in parts])


def _bytes(value: torch.Tensor) -> Any:
    whole = value.resolve_conj().resolve_neg().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy()
