"""Saving in the background: the caller pays for a copy in memory, a thread for everything else."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from speedtronic.checkpoint.records import Pointer

Commit = Callable[[dict[str, Any]], tuple[Pointer, int]]


@dataclass(frozen=True)
class Saved:
    """A committed save.

    Attributes:
        pointer: to the checkpoint now on disk.
        stall_s: seconds for which the caller was held, waiting for the save before it included.
        durable_s: seconds from the call to the commit.
        size_bytes: of the payload.
    """

    pointer: Pointer
    stall_s: float
    durable_s: float
    size_bytes: int


class CheckpointWriter:
    """Commits states one after the other, at most one in flight.

    A save that failed raises its error from the next `save`, `finished` or `wait`, once; what was
    on disk before it is whole.

    Args:
        commit: makes a state durable and returns the pointer to it and the size of its payload;
            called in one other thread.
        background: False commits before `save` returns, without a copy in memory.
    """

    def __init__(self, commit: Commit, *, background: bool) -> None:
        self._commit = commit
        self._buffers = HostBuffers() if background else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._in_flight: Future[tuple[Pointer, float, int]] | None = None
        self._stall_s = 0.0
        self._finished: list[Saved] = []

    def save(self, state: dict[str, Any]) -> None:
        """Take `state`; it may change as soon as this returns."""
        started = time.perf_counter()
        self._settle()
        if self._buffers is None:
            pointer, elapsed_s, size = self._durable(state, started)
            self._finished.append(Saved(pointer, elapsed_s, elapsed_s, size))
            return
        copy = self._buffers.copy(state)
        self._in_flight = self._thread.submit(self._durable, copy, started)
        self._stall_s = time.perf_counter() - started

    def finished(self) -> list[Saved]:
        """The saves committed since the last call, oldest first; does not wait."""
        if self._in_flight is not None and self._in_flight.done():
            self._settle()
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> list[Saved]:
        """As `finished`, once nothing is in flight."""
        self._settle()
        return self.finished()

    def close(self) -> None:
        """Return once nothing is in flight; the copies are given up."""
        self._thread.shutdown()

    def _settle(self) -> None:
        if self._in_flight is None:
            return
        wait([self._in_flight])  # an interrupt here loses nothing: it is still in flight
        future, self._in_flight = self._in_flight, None
        pointer, durable_s, size = future.result()
        self._finished.append(Saved(pointer, self._stall_s, durable_s, size))

    def _durable(self, state: dict[str, Any], started: float) -> tuple[Pointer, float, int]:
        if self._buffers is not None:
            self._buffers.wait()
        pointer, size = self._commit(state)
        return pointer, time.perf_counter() - started, size


class HostBuffers:
    """Copies states of tensors on any device; the copies live until the next call of `copy`.

    It holds as much host memory as the largest state so far: allocating anew for each save would
    cost more time than the copy (page faults). Memory that tensors share is copied once and shared
    by the copies, so a payload is no larger than it would be without the copy.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[tuple[Any, ...], Tensor]] = []  # with the kind of each
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """`state` with every tensor replaced by its copy on the CPU, complete on return.

        Containers are new, numbers and strings the same objects. For tensors of a CUDA device the
        copy is enqueued on a side stream that the current one waits for, so that whatever is
        enqueued next cannot change what is copied; call `wait` before reading.
        """
        copied: dict[int, UntypedStorage] = {}
        for device in _cuda_devices(state):
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))
            stream.wait_stream(torch.cuda.current_stream(device))
        result = self._copied(state, copied)
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
        assert isinstance(result, dict)
        return result

    def wait(self) -> None:
        """Return once the copies from other devices have arrived."""
        for stream in self._streams.values():
            stream.synchronize()

    def _copied(self, value: Any, copied: dict[int, UntypedStorage]) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value.detach(), copied)
        if isinstance(value, dict):
            result = type(value)((key, self._copied(item, copied)) for key, item in value.items())
            if hasattr(value, "__dict__"):  # the module versions that a state dict carries
                result.__dict__.update(value.__dict__)
            return result
        if isinstance(value, list | tuple):
            return type(value)([self._copied(item, copied) for item in value])
        return value

    def _tensor(self, tensor: Tensor, copied: dict[int, UntypedStorage]) -> Tensor:
        odd = tensor.layout != torch.strided or tensor.is_quantized
        if odd or type(tensor) is not Tensor or tensor.is_conj() or tensor.is_neg():
            return tensor.clone().cpu().resolve_conj().resolve_neg()
        source = tensor.untyped_storage()
        storage = copied.get(source._cdata)
        if storage is None:
            whole = tensor.nbytes == source.nbytes() and tensor.is_contiguous()
            copy = self._copy(tensor if whole else _bytes(source), number=len(copied))
            storage = copied[source._cdata] = copy.untyped_storage()
            if whole:
                return copy
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _copy(self, source: Tensor, number: int) -> Tensor:
        """A copy in the memory that the last state's had, if it is of the same kind."""
        pinned = source.device.type == "cuda"
        kind = (source.shape, source.dtype, pinned)
        if number == len(self._buffers) or self._buffers[number][0] != kind:
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
            self._buffers[number : number + 1] = [(kind, buffer)]
        buffer = self._buffers[number][1]
        if pinned:
            with torch.cuda.stream(self._streams[source.device]):
                return buffer.copy_(source, non_blocking=True)
        return buffer.copy_(source)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _cuda_devices(value: Any) -> set[torch.device]:
    if isinstance(value, Tensor):
        return {value.device} if value.device.type == "cuda" else set()
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return {device for item in items for device in _cuda_devices(item)}
    return set()
