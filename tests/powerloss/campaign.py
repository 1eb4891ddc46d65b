"""`make powerloss`: real runs on disks that lose power, at each moment and in many ways.

On standard output a JSON line for each file system and kind of save, ten in all, and plain text.
Fails when a promise did not hold, when there were too few states, or when a run whose store leaves
out an fsync was not caught.
"""

import argparse
import json
import multiprocessing
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from tests.powerloss.filesystems import FILE_SYSTEMS, missing
from tests.powerloss.job import Job, do

NUM_PROCESSES = 2
NUM_STATES = 310  # of each file system and kind of save; 300 are asked for
TABLE_HEAD = (
    "file system | saves | states | resumed to the end | violated",
    "---|---|---|---|---",
)
INSIDE = "SPEEDTRONIC_POWERLOSS"  # set to the folder for evidence, in the process that does it


def jobs(num_states: int, only: str, with_broken: bool) -> list[Job]:
    """The ten, and the two that must be caught."""
    kinds = [kind for kind in FILE_SYSTEMS if only in ("", kind.name)]
    found = [Job(kind, mode, num_states) for kind in kinds for mode in (False, True)]
    if with_broken:
        by_name = {kind.name: kind for kind in FILE_SYSTEMS}
        found.append(Job(by_name["ext4 ordered"], False, 60, "no-fsync"))
        found.append(Job(by_name["btrfs"], False, 60, "no-directory-fsync"))
    return found


def campaign(todo: list[Job], place: str, evidence: str) -> int:
    """The exit code."""
    context = multiprocessing.get_context("spawn")
    failures, lines, rows = [], [], []
    with ProcessPoolExecutor(NUM_PROCESSES, context) as pool:
        futures = [pool.submit(do, job, place, evidence) for job in todo]
        for job, future in zip(todo, futures, strict=True):
            outcome = future.result()
            hows = ", ".join(f"{count} {how}" for how, count in sorted(outcome.hows.items()))
            print(
                f"{outcome.fault}: {outcome.states} states ({hows}), {outcome.mended} with a torn "
                f"superblock mended first, {outcome.resumed} resumed to the end, "
                f"{outcome.violated} violated, {outcome.seconds:.0f} s",
                flush=True,
            )
            if job.broken:
                if outcome.violated:
                    print(f"  caught, as it must be: {outcome.examples[0]}", flush=True)
                else:
                    failures.append(f"{outcome.fault}: not caught")
                continue
            lines.append(
                {"fault": outcome.fault, "fired": outcome.states, "violated": outcome.violated}
            )
            rows.append(
                f"{job.kind.name} | {job.how} | {outcome.states} | {outcome.resumed} | "
                f"{outcome.violated}"
            )
            found = [f"{outcome.fault}: {example}" for example in outcome.examples]
            print("".join(f"  {line}\n" for line in found), end="", flush=True)
            failures += found
            if outcome.states < min(300, job.num_states):
                failures.append(f"{outcome.fault}: {outcome.states} states only")
    print(f"\nfor docs/failure-model.md: {today()}, commit {commit()}\n")
    print("\n".join([*TABLE_HEAD, *rows]) + "\n")
    for line in lines:
        print(json.dumps(line))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def main(argv: list[str]) -> int:
    """The exit code: 0 all held, 1 something did not, 2 it cannot be tried here."""
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss", description=__doc__)
    parser.add_argument("--states", type=int, default=NUM_STATES, metavar="N")
    parser.add_argument(
        "--only", default="", metavar="FILE_SYSTEM", choices=[k.name for k in FILE_SYSTEMS]
    )
    parser.add_argument("--skip-broken", action="store_true")
    options = parser.parse_args(argv)
    if problem := obstacle():
        print(problem, file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        return _inside(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    todo = jobs(options.states, options.only, not options.skip_broken)
    with tempfile.TemporaryDirectory(prefix="speedtronic-powerloss-") as place:
        # Of this mount namespace only: it is gone, like all that is mounted, with the last process.
        subprocess.run(["mount", "-t", "tmpfs", "powerloss", place], check=True)
        try:
            return campaign(todo, place, os.environ[INSIDE])
        finally:
            subprocess.run(["umount", "--lazy", place], check=False)


def _inside(argv: list[str]) -> int:
    """Go on in namespaces of one's own: whatever ends this ends all processes and mounts too."""
    evidence = f"{tempfile.gettempdir()}/speedtronic-powerloss-evidence-{secrets.token_hex(4)}"
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc"]
    command += ["--fork", "--kill-child", sys.executable, "-m", "tests.powerloss", *argv]
    return subprocess.run(command, env={**os.environ, INSIDE: evidence}, check=False).returncode


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def commit() -> str:
    """What was tried; with a mark if there were changes on top of it."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def obstacle() -> str:
    """Why this cannot be done here, with what to do about it; empty if it can."""
    if platform.system() != "Linux":
        return "make powerloss mounts file systems: it needs Linux"
    if os.geteuid() != 0:
        return "make powerloss mounts file systems: run it as root"
    if tools := missing():
        return f"make powerloss needs {', '.join(tools)}: apt-get install the packages named"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not Path(device).exists():
            return f"make powerloss needs {device}, which this machine does not have"
    return ""
