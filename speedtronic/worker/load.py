"""A checkpoint loaded in a process of its own: the parent's side.

Whatever loading does to that process is an answer here, never an exception.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, cast

from speedtronic.checkpoint import Manifest
from speedtronic.shutdown import block_signals
from speedtronic.worker import openmp

SPARE_BYTES = 256 * 2**20

Outcome = Literal["loaded", "corrupt", "unreadable", "newer", "memory", "died"]


@dataclass(frozen=True)
class Facts:
    """What the checks need to know of a payload, as it says itself.

    Attributes:
        step, samples, tokens: its counters.
        disagreements: what of it contradicts its manifest, or itself.
        data: position in the data, with `own_state`: whether the data gave a state of their own.
        data_fingerprint: of the data it was trained on.
        config, history: of the run.
        not_finite: the first few tensors of model and optimizer that hold NaN or infinity.
        state_digest: computed anew over what was loaded.
        seconds: that loading and judging took.
    """

    step: int
    samples: int
    tokens: int
    disagreements: list[str]
    data: dict[str, Any]
    data_fingerprint: str | None
    config: dict[str, Any]
    history: list[dict[str, Any]]
    not_finite: list[str]
    state_digest: str
    seconds: float


@dataclass(frozen=True)
class Loaded:
    """How a load ended; `manifest` and `facts` are there when it is `loaded`, else `reason`.

    `corrupt` says something of the file; `unreadable`, `memory` and `died` of the machine, or of
    both; `newer` that this program is too old for it.
    """

    outcome: Outcome
    reason: str = ""
    manifest: Manifest | None = None
    facts: Facts | None = field(default=None, repr=False)


class LoadProcess:
    """A process that loads one checkpoint after another; started when needed; a context manager.

    Args:
        spare_bytes: memory that it may take beyond three times the payload; enforced on Linux.
    """

    def __init__(self, spare_bytes: int = SPARE_BYTES) -> None:
        self._spare_bytes = spare_bytes
        self._process: subprocess.Popen[str] | None = None

    def load(self, root: str, step: int) -> Loaded:
        """Load the checkpoint of `step` in the directory `root`, verified and `weights_only`."""
        process = self._process or self._start()
        request = {"root": root, "step": step, "spare_bytes": self._spare_bytes}
        assert process.stdin is not None and process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith("\n"):
            code = process.wait()
            self.close()
            return Loaded("died", f"the process that loaded it {_ending(code)}")
        return _loaded(json.loads(line))

    def close(self) -> None:
        """End the process; it is reaped on return."""
        process, self._process = self._process, None
        if process is not None:
            # Closing the pipes sends once more what a dead process did not read.
            with suppress(BrokenPipeError), process:
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        with block_signals():  # what this process answers, the other need not
            self._process = subprocess.Popen(
                # -P: what lies in the working directory, maybe the run's, is not imported.
                [sys.executable, "-P", "-m", "speedtronic.worker.load_main", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=openmp.environment(),
                text=True,
            )
        return self._process


def _loaded(answer: Mapping[str, Any]) -> Loaded:
    if "facts" in answer:
        known = {item.name for item in fields(Facts)}
        facts = Facts(**{key: value for key, value in answer["facts"].items() if key in known})
        return Loaded("loaded", "", Manifest.model_validate(answer["manifest"]), facts)
    [(outcome, reason)] = answer.items()
    return Loaded(cast(Outcome, outcome), reason)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (from outside, or out of memory: see dmesg)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
