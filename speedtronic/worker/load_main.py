"""Runs in the loading child: `python -m speedtronic.worker.load_main ANSWERS_FD PARENT_PID`.

A damaged or hostile file could crash the process that loads it, or take all the memory there is.
So it is loaded here, under a memory limit. `worker.messages` defines what is sent both ways.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from speedtronic.checkpoint import Manifest, open_storage
from speedtronic.checkpoint.agreement import disagreements
from speedtronic.checkpoint.candidates import Candidate
from speedtronic.checkpoint.digest import state_digest
from speedtronic.errors import CorruptError, StorageError, UnsupportedFormatError
from speedtronic.liveness import end_as_orphan, end_with_parent
from speedtronic.machine_errors import OUT_OF_MEMORY, is_machine_failure
from speedtronic.worker.messages import Facts, Loaded, LoadRequest, to_line

COPIES = 3  # of the payload, in memory, while it is loaded and judged; one is usual
MAX_NAMED = 3


def main() -> None:
    """Serve requests until standard input closes, which it does when the parent ends."""
    answers_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    end_with_parent(parent_pid)
    os.set_inheritable(answers_fd, False)
    os.dup2(2, 1)  # what a library prints while it loads goes to standard error
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        for line in iter(sys.stdin.readline, ""):
            answers.write(to_line(_load(LoadRequest(**json.loads(line)))))
            answers.flush()
        end_as_orphan()


def _load(request: LoadRequest) -> Loaded:
    started = time.perf_counter()
    try:
        storage = open_storage(request.root)
        candidate = Candidate(storage, request.step, storage.entries())
        manifest = candidate.manifest
        with _limited(COPIES * manifest.payload.size_bytes + request.spare_bytes):
            state = candidate.load_unjudged()
            facts = _facts(manifest, state, started)
    except CorruptError as error:
        return Loaded("corrupt", str(error))
    except UnsupportedFormatError as error:
        return Loaded("newer", str(error))
    except StorageError as error:
        return Loaded("unreadable", str(error))
    except MemoryError as error:
        return Loaded("memory", str(error) or "out of memory")
    except Exception as error:
        if any(words in str(error) for words in OUT_OF_MEMORY):
            return Loaded("memory", str(error))  # an allocation that failed within torch
        if is_machine_failure(error):
            return Loaded("unreadable", f"it cannot be judged here and now: {error}")
        raise
    return Loaded("loaded", "", manifest, facts)


class _limited:
    """Limits how much memory this process may allocate beyond what it has; Linux only.

    Args:
        more_bytes: what it may allocate inside the block.
    """

    def __init__(self, more_bytes: int) -> None:
        self._more_bytes = more_bytes
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def __enter__(self) -> None:
        used = _data_bytes()
        if used is not None:
            soft, hard = used + self._more_bytes, self._before[1]
            soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, self._before)


def _data_bytes() -> int | None:
    """Return what Linux counts against RLIMIT_DATA; None on other systems."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None


def _facts(manifest: Manifest, state: dict[str, Any], started: float) -> Facts:
    """Collect what the checks need to know of a payload."""
    data = state["data"]
    position = {key: x for key, x in data.items() if isinstance(x, str | int | float | None)}
    with ThreadPoolExecutor(1) as other:  # both release the interpreter's lock for large tensors
        digesting = other.submit(_state_digest, state)
        not_finite = _not_finite(state)
        identity = digesting.result()
    return Facts(
        step=state["step"],
        samples=state["samples"],
        tokens=state["tokens"],
        disagreements=disagreements(manifest, state),
        data={**position, "own_state": data.get("source") is not None},
        data_fingerprint=state.get("data_fingerprint"),
        config=state["config"],
        history=state.get("history") or [],
        not_finite=not_finite,
        state_digest=identity,
        seconds=time.perf_counter() - started,
    )


def _state_digest(state: dict[str, Any]) -> str:
    try:
        return state_digest(state)
    except TypeError as error:  # it holds what no checkpoint does
        return str(error)


def _not_finite(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the first few tensors of model and optimizer that hold NaN or infinity.

    Those that the checkpoint itself lists as not finite on purpose, such as a mask, are left out.
    """
    named = []
    on_purpose = {f"model/{name}" for name in state.get("not_finite", [])}
    for path, x in _tensors({key: state.get(key) for key in ("model", "optimizer")}, ""):
        if path in on_purpose:
            continue
        if x.element_size() == 1:  # float8 has no sum
            x = x.float()
        # Finite numbers can have an infinite sum too; only then is each looked at.
        if not torch.isfinite(x.sum(dtype=torch.float32)) and not torch.isfinite(x).all():
            named.append(path)
            if len(named) == MAX_NAMED:
                break
    return named


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}/{index}")


if __name__ == "__main__":
    main()
