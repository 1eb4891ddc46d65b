"""SIGKILL at random moments of real saves by another process on a real disk."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.quarantine import quarantined
from speedtronic.checkpoint.selection import CUT_SHORT
from speedtronic.storage.local import LocalStorage
from tests.robustness.stage import real_store, saved_at
from tests.robustness.sweeps import Tally

KILLED = "SIGKILL of a saving process"
NUM_SAVES = 4  # a saver's longest life, in saves of average length


def sigkills(tally: Tally, count: int, root: Path, rng: random.Random) -> None:
    """Kill savers in `root`, one after the other; after each go and see as a new process would.

    What was acknowledged is known here only from what the savers said before they died.
    """
    command = [sys.executable, "-m", "tests.robustness.killed_saver", str(root), "2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, **pipes) as server:
        assert server.stdin and server.stdout
        acknowledged, longest_s = 0, 60.0
        try:
            for number in range(count + 1):
                server.stdin.write(b"go\n")
                word, pid = server.stdout.readline().split()
                assert word == b"started"
                started = time.monotonic()
                life_s = rng.random() * longest_s if number else longest_s
                enough = count if number else NUM_SAVES
                saved = _saved(server.stdout, int(pid), life_s, enough)
                acknowledged = max([acknowledged, *saved])
                if number == 0:
                    longest_s = time.monotonic() - started
                step, found = _found(root, acknowledged)
                tally.note([KILLED] if number else [], f"kill {number}", found)
                acknowledged = max(acknowledged, step)  # this process has seen it
        finally:
            server.kill()


def _saved(lines: IO[bytes], pid: int, life_s: float, enough: int) -> list[int]:
    """Kill the saver `life_s` from now, or when it has saved `enough`; what it said it saved."""
    deadline = time.monotonic() + life_s
    said = b""
    while (left := deadline - time.monotonic()) > 0 and said.count(b"saved") < enough:
        if select.select([lines], [], [], left)[0]:
            said += os.read(lines.fileno(), 4096)
    os.kill(pid, signal.SIGKILL)
    while not said.endswith(b"ended\n"):
        said += os.read(lines.fileno(), 4096)
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith(b"saved")]


def _found(root: Path, acknowledged: int) -> tuple[int, list[str]]:
    """The step that a new process goes on from, and what is wrong about it."""
    found = []
    steps = []
    for _ in range(2):
        checkpoint = real_store(LocalStorage(root), keep_last=2).select()
        step = checkpoint.manifest.step if checkpoint else 0
        steps.append(step)
        # Two may have followed: one whose word the kill came before, and the one in flight.
        if not acknowledged <= step <= acknowledged + 4:
            found.append(f"selected {step}, acknowledged {acknowledged}")
        if checkpoint and (step, state_digest(checkpoint.state)) != saved_at(step):
            found.append(f"step {step} is not what was saved")
    if steps[0] != steps[1]:
        found.append(f"selecting twice gives {steps}")
    rejected = [x for x in quarantined(LocalStorage(root)) if x.reason != CUT_SHORT]
    if rejected:
        found.append(f"nothing was damaged, but rejected were {rejected}")
    return steps[0], found
