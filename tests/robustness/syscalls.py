"""Every system call that a run makes on its own files, failing once and from then on.

The process under test has `shim.c` preloaded: `python -m tests.robustness.syscalls STRIDE CALL...`
prints what a Tally holds. It starts or resumes a run, trains, saves and writes a report; one call
fails on the way, and then a process without faults must come to the end in the right bits.
"""

import ctypes
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from speedtronic.errors import RunLockedError, SpeedtronicError, StorageError
from speedtronic.machine_errors import TRANSIENT_ERRNOS
from speedtronic.report import RunReport, write_report
from speedtronic.runtime import build_runtime
from tests.robustness.sweeps import Tally
from tests.tiny import tiny_config

# Each call with the errors that it is given.
_SPACE = ["ENOSPC", "EDQUOT", "EROFS"]
_HANDLES = ["EMFILE", "ENFILE"]
CALLS = {
    "open": [*_HANDLES, "ENOMEM", "EINTR", "EIO", "EACCES", *_SPACE],
    "opendir": [*_HANDLES, "ENOMEM", "EIO", "EACCES"],
    "read": ["EIO", "EINTR", "EAGAIN", "ENOMEM"],
    "write": ["EIO", "EINTR", "EAGAIN", *_SPACE],
    "fsync": ["EIO", "EINTR", *_SPACE],
    "rename": ["EIO", "ENOMEM", "EACCES", *_SPACE],
    "unlink": ["EIO", "ENOMEM", "EACCES", "EROFS"],
    "mkdir": ["EIO", "ENOMEM", "EACCES", *_SPACE],
    "stat": ["EIO", "ENOMEM", "EACCES"],
    "fstat": ["EIO", "ENOMEM"],
    "lseek": ["EIO"],
    "flock": ["EIO", "EINTR", "EAGAIN", "ENOMEM", "EACCES"],
}
KINDS = [f"{error} at system call {call}" for call, errors in CALLS.items() for error in errors]

TARGET = 6
# What the disk cannot give back, however often it is asked, is damage.
_READS = {"open", "read", "stat", "fstat", "lseek", "opendir"}


def obstacle() -> str:
    """Why there is no sweep here; empty where there is."""
    if sys.platform != "linux":
        return "the shim is for Linux"
    return "" if shutil.which("cc") else "there is no C compiler (cc) to build the shim with"


def sweep(tally: Tally, calls: list[str], *, stride: int = 1) -> None:
    """Let each `stride`-th of the calls fail, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/shim.so"
        source = Path(__file__).with_name("shim.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        command = [sys.executable, "-m", "tests.robustness.syscalls", str(stride), *calls]
        environment = {**os.environ, "LD_PRELOAD": library}
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    for fault, where, found in map(json.loads, output.splitlines()):
        tally.note([fault], where, found)


class _Place:
    """Runs at one path, over and over: one that has saved twice, and one that has not begun."""

    def __init__(self, root: Path) -> None:
        self.run = root / "run"
        self.config = tiny_config(self.run, **{"checkpoint.keep_last": 2})
        self._shim = ctypes.CDLL(None)
        self._begun = root / "begun"
        self._train(4)
        self.run.rename(self._begun)
        self.digest = self._train(TARGET)

    def fault(self, call: str, error: str, number: int, *, sticky: bool, fresh: bool) -> list[str]:
        """What is wrong afterwards."""
        shutil.rmtree(self.run, ignore_errors=True)
        if not fresh:
            shutil.copytree(self._begun, self.run)
        code = getattr(errno, error)
        self._shim.shim_arm(os.fsencode(self.run), call.encode(), number, code, sticky)
        found, said = [], ""
        try:
            self._train(TARGET)
        except SpeedtronicError as raised:
            said = f"{type(raised).__name__}: {raised}"
            lost = sticky and error == "EIO" and call in _READS
            held = call == "flock" and isinstance(raised, RunLockedError)
            if (
                code in TRANSIENT_ERRNOS
                and not isinstance(raised, StorageError)
                and not (lost or held)
            ):
                found.append(f"not to be tried again: {said}")
            if str(self.run) not in said:
                found.append(f"names no file: {said}")
        except BaseException as raised:
            said = f"{type(raised).__name__}: {raised}"
            found.append(f"no error of ours: {said}")
        self.fired = self._shim.shim_disarm() > number
        aside = self.run / "checkpoints" / "quarantine"
        if aside.is_dir() and not (sticky and error == "EIO" and call in _READS):
            found.append(f"moved {sorted(path.name for path in aside.iterdir())} after {said}")
        try:
            if self._train(TARGET) != self.digest:
                found.append(f"ends in other bits after {said}")
        except Exception as raised:
            found.append(f"does not go on after {said}: {type(raised).__name__}: {raised}")
        return found

    def _train(self, target: int) -> str:
        with build_runtime(self.config, resume=True, target=target) as runtime:
            runtime.train(target)
            pointer = runtime.pointer
            report = RunReport("tiny", str(self.run), 0, target, target, pointer)
        report.take_up(self.run)
        write_report(report, self.run)
        assert pointer is not None
        return pointer.state_digest


def _faults(place: _Place, calls: list[str], stride: int) -> Iterator[tuple[str, str, list[str]]]:
    for call in calls:
        for error in CALLS[call]:
            # Python repeats a call that was interrupted (PEP 475); no kernel interrupts for ever.
            for sticky in (False,) if error == "EINTR" else (False, True):
                for fresh in (False, True):
                    number = 0
                    while True:
                        found = place.fault(call, error, number, sticky=sticky, fresh=fresh)
                        # No kernel refuses to unlock for ever.
                        if not place.fired or (sticky and call == "flock" and number > 0):
                            break
                        begins = "fresh" if fresh else "resumed"
                        where = f"{begins}, call {number}{' and all later' if sticky else ''}"
                        yield f"{error} at system call {call}", where, found
                        number += stride


def main() -> None:
    """Print each fault with what is wrong afterwards, as a JSON line."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    stride, *calls = sys.argv[1:]
    # In memory where that can be: the faults are the shim's, and a flush costs nothing.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for line in _faults(_Place(Path(folder)), calls or list(CALLS), int(stride)):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
