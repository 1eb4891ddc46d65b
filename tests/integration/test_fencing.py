"""A training process that was stopped, taken for dead and replaced: it saves nothing any more."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from speedtronic.checkpoint import RunLock
from tests.tiny import tiny_file, tree
from tests.waiting import last_step, wait_until

START_S = 60.0  # for a process, on a busy machine


class Training:
    """`speedtronic train` of a config, and what it said."""

    def __init__(self, file: str, *options: str) -> None:
        command = [sys.executable, "-m", "speedtronic", "train", "--config", file, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def wait(self) -> int:
        code = self.process.wait(START_S)
        self._reading.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_stopped_replaced_and_continued(tmp_path: Path, in_background: bool) -> None:
    changes = {
        "run.max_steps": 1_000_000,
        "scheduler.max_steps": 100,
        "checkpoint.async_save": in_background,
    }
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **changes)
    metrics, checkpoints = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "checkpoints"
    old = Training(file)
    try:
        assert wait_until(lambda: last_step(metrics) >= 10, START_S)
        old.process.send_signal(signal.SIGSTOP)
        refused = Training(file, "--resume")
        assert refused.wait() == 1
        assert f"is being trained by pid {old.process.pid} on " in refused.said[-1]
        refused.close()

        for lock in (checkpoints / ".lock", tmp_path / "run" / ".lock"):
            lock.unlink()  # an operator who knows better
        target = last_step(metrics) + 6
        new = Training(file, "--resume", "--set", f"run.max_steps={target}")
        assert new.wait() == 0
        new.close()
        before = tree(checkpoints)
        old.process.send_signal(signal.SIGCONT)
        assert old.wait() == 1
    finally:
        old.close()
    assert f"is held by pid {new.process.pid} on " in old.said[-1]
    assert tree(checkpoints) == before
    blocked = RunLock(str(checkpoints))
    blocked.acquire()  # and it blocks nobody
    blocked.release()
    assert str(os.getpid()) in (checkpoints / ".lock").read_text()
