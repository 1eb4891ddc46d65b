"""Files as a hostile or careless program makes them: zips of torch.save with a pickle of choice."""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Call:
    """Is pickled as a call of `function`, which reading the file would make."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self._reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self._reduced


class StorageId(tuple[Any, ...]):
    """Is pickled as a reference to a tensor's memory: (kind, class, key, device, values)."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return tuple(obj) if isinstance(obj, StorageId) else None


def tensor(
    *,
    offset: Any = 0,
    shape: Any = (2,),
    stride: Any = (1,),
    values: Any = 2,
    key: Any = "0",
    kind: Any = "storage",
    hooks: Any = None,
    storage: Any = None,
) -> Call:
    """A tensor of floats as torch pickles it, over the record `data/0`, with one thing wrong."""
    place = StorageId((kind, torch.FloatStorage, key, "cpu", values))
    arguments = (storage or place, offset, shape, stride, False, hooks or OrderedDict())
    return Call(torch._utils._rebuild_tensor_v2, *arguments)


def pt_file(value: Any, *, protocol: int = 2, data: bytes = b"\0" * 8, **more: bytes) -> bytes:
    """The bytes of a `.pt` file that holds `value`, with one record of tensor memory."""
    content = io.BytesIO()
    _Pickler(content, protocol).dump(value)
    return zip_file({"data.pkl": content.getvalue(), "data/0": data, **more})


def zip_file(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The records in a zip, under one folder as torch writes them."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in records.items():
            target.writestr(f"archive/{name}", content)
    return file.getvalue()
