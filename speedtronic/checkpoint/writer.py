"""Saves in the background: the caller waits for a copy in memory, a thread does the rest."""

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
    """Describes a committed save.

    Attributes:
        pointer: to the checkpoint now on disk.
        stall_s: seconds for which the caller was blocked, including the wait for the previous save.
        durable_s: seconds from the call until the commit.
        size_bytes: of the payload.
    """

    pointer: Pointer
    stall_s: float
    durable_s: float
    size_bytes: int


class CheckpointWriter:
    """Commits states one after the other, at most one at a time.

    The error of a failed save is raised once, by the next `save`, `finished` or `wait`. Checkpoints
    committed before it are intact.

    Args:
        commit: makes a state durable and returns the pointer to it and the size of its payload;
            called in one background thread.
        background: if False, `save` itself commits, without a copy in memory.
    """

    def __init__(self, commit: Commit, *, background: bool) -> None:
        self._commit = commit
        self._buffers = HostBuffers() if background else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._in_flight: Future[tuple[Pointer, float, int]] | None = None
        self._stall_s = 0.0
        self._finished: list[Saved] = []

    def save(self, state: dict[str, Any]) -> None:
        """Save `state`, which may be changed as soon as this returns."""
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
        """Return the saves committed since the last call, oldest first, without waiting."""
        if self._in_flight is not None and self._in_flight.done():
            self._settle()
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> list[Saved]:
        """Wait for the save in flight, then return as `finished` does."""
        self._settle()
        return self.finished()

    def close(self) -> None:
        """Wait for the save in flight and stop the thread."""
        self._thread.shutdown()

    def _settle(self) -> None:
        if self._in_flight is None:
            return
        wait([self._in_flight])  # an interrupt here loses nothing: the save stays in flight
        future, self._in_flight = self._in_flight, None
        pointer, durable_s, size = future.result()
        self._finished.append(Saved(pointer, self._stall_s, durable_s, size))

    def _durable(self, state: dict[str, Any], started: float) -> tuple[Pointer, float, int]:
        if self._buffers is not None:
            self._buffers.wait()
        pointer, size = self._commit(state)
        return pointer, time.perf_counter() - started, size


class HostBuffers:
    """Copies states to buffers in host memory, which the next call of `copy` reuses.

    It keeps as much host memory as the largest state so far: new memory for each save would cost
    more time (page faults) than the copy. Memory shared by tensors is copied once and shared by the
    copies, so that a payload does not become larger.
    """

    def __init__(self) -> None:
        self._buffers: list[
            tuple[tuple[Any, ...], Tensor]
        ] = []  # shape, type and pinning of each, and its memory
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return `state` with every tensor replaced by its copy on the CPU.

        Containers are new; numbers and strings are the same objects. Copies from a CUDA device are
        enqueued on a side stream that the current stream waits for, so that later work cannot
        change what is copied. Call `wait` before reading them.
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
        """Wait until all copies from CUDA devices are complete."""
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
        """Copy into the buffer of the previous state, if shape, type and device agree."""
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
