"""Compute fingerprints of data, by which a resume notices that they changed or shrank."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from speedtronic.errors import DataError

BLOCK_BYTES = 2**20
NUM_BLOCKS = 64
NUM_ITEMS = 8


def fingerprint(**facts: Any) -> str:
    """Return `xxh3_128:<hex>` of facts that JSON can hold, in one canonical form."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(text.encode())}"


def describe_file(path: Path) -> list[str | int]:
    """Describe a file by its name without folder, size in bytes, and xxh3-128 of the content.

    Of a file larger than `NUM_BLOCKS` blocks, those many are read: head, tail, and evenly between.

    Raises:
        DataError: the file cannot be read.
    """
    hasher = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            num_blocks = min(NUM_BLOCKS, -(-size // BLOCK_BYTES))
            last = max(size - BLOCK_BYTES, 0)
            for number in range(num_blocks):
                file.seek(number * last // max(num_blocks - 1, 1))
                hasher.update(file.read(BLOCK_BYTES))
    except OSError as error:
        raise DataError(f"text cannot be read: {path}: {error}") from error
    return [path.name, size, hasher.hexdigest()]


def spread(num_items: int) -> list[int]:
    """Return up to `NUM_ITEMS` evenly spaced indices, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, num_items - 1, NUM_ITEMS)})


def digest(value: Any) -> str:
    """xxh3-128 of an item: nested dicts and lists of tensors, arrays, numbers and strings.

    Of anything else only the type counts.
    """
    hasher = xxhash.xxh3_128()
    _update(hasher, value)
    return hasher.hexdigest()


def _update(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        header: tuple[Any, ...] = ("tensor", str(value.dtype), tuple(value.shape))
        content: Any = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        header = ("array", value.dtype.str, value.shape)
        content = value.tobytes()
    elif isinstance(value, Mapping):
        header, content = ("dict", [repr(key) for key in value]), b""
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        header, content = ("list", len(value)), b""
    elif isinstance(value, bool | int | float | str | bytes | None):
        header, content = (type(value).__name__,), repr(value).encode(errors="surrogatepass")
    else:
        header, content = ("other", type(value).__qualname__), b""
    head = repr(header).encode()
    hasher.update(f"{len(head)} {memoryview(content).nbytes} ".encode())
    hasher.update(head)
    hasher.update(content)
    children = value.values() if header[0] == "dict" else value if header[0] == "list" else ()
    for child in children:
        _update(hasher, child)
