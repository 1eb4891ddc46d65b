"""The child's side of a load: `python -m speedtronic.worker.load_main PARENT_PID`.

Loading a file is where a damaged or hostile one could do harm: crash the process, or take all the
memory there is. So it happens here, under a limit. One JSON object a line:

    requests  {"root": "runs/a/checkpoints", "step": 6, "spare_bytes": 268435456}
    answers   {"manifest": {...}, "facts": {...}}
              {"corrupt" | "unreadable" | "newer" | "memory": "why"}
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

COPIES = 3  # of the payload, in memory, while it is loaded and judged; one is usual
MAX_NAMED = 3


def main() -> None:
    """Answer requests until the parent is gone, which ends the input; until then it kills."""
    end_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints is no answer
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        answer = _answer(request["root"], request["step"], request["spare_bytes"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    end_as_orphan()


def _answer(root: str, step: int, spare_bytes: int) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        storage = open_storage(root)
        candidate = Candidate(storage, step, storage.entries())
        manifest = candidate.manifest
        with _limited(COPIES * manifest.payload.size_bytes + spare_bytes):
            state = candidate.load_unjudged()
            facts = _facts(manifest, state)
    except CorruptError as error:
        return {"corrupt": str(error)}
    except UnsupportedFormatError as error:
        return {"newer": str(error)}
    except StorageError as error:
        return {"unreadable": str(error)}
    except MemoryError as error:
        return {"memory": str(error) or "out of memory"}
    except Exception as error:
        if any(words in str(error) for words in OUT_OF_MEMORY):
            return {"memory": str(error)}  # an allocation that failed within torch
        if is_machine_failure(error):
            return {"unreadable": f"it cannot be judged here and now: {error}"}
        raise
    facts["seconds"] = time.perf_counter() - started
    return {"manifest": manifest.model_dump(exclude_unset=True), "facts": facts}


class _limited:
    """Let this process have so many bytes more than it has now; where that can be told."""

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
    """What Linux counts against RLIMIT_DATA; None elsewhere."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None


def _facts(manifest: Manifest, state: dict[str, Any]) -> dict[str, Any]:
    """What the checks need to know of a payload; small."""
    data = state["data"]
    position = {key: x for key, x in data.items() if isinstance(x, str | int | float | None)}
    with ThreadPoolExecutor(1) as other:  # both let go of the interpreter for each large tensor
        digesting = other.submit(_state_digest, state)
        not_finite = _not_finite(state)
        identity = digesting.result()
    return {
        **{key: state[key] for key in ("step", "samples", "tokens")},
        "disagreements": disagreements(manifest, state),
        "data": {**position, "own_state": data.get("source") is not None},
        "data_fingerprint": state.get("data_fingerprint"),
        "config": state["config"],
        "history": state.get("history") or [],
        "not_finite": not_finite,
        "state_digest": identity,
    }


def _state_digest(state: dict[str, Any]) -> str:
    try:
        return state_digest(state)
    except TypeError as error:  # it holds what no checkpoint does
        return str(error)


def _not_finite(state: Mapping[str, Any]) -> list[str]:
    """The first few tensors of model and optimizer with NaN or infinity in them, but for those of
    which the save says that it is on purpose, such as a mask."""
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
