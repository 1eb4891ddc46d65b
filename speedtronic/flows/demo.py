"""Kills a training run twice, resumes it, and shows that the result is the same to the bit.

    python flows/resume_demo.py [--seed N]        about a minute on two cores

Three runs in runs/demo: the two-step demonstration of the `speedtronic` command; a chunked flow
whose training process is killed twice at random moments; the same run, uninterrupted. Exits with 1
if the last two differ in a single bit.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# For this process and those it starts: a model this small gains nothing from threads, and on a busy
# machine they would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from speedtronic.checkpoint import open_storage, survey  # noqa: E402
from speedtronic.flows.train import train  # noqa: E402
from speedtronic.plot import plot_losses  # noqa: E402
from speedtronic.report import RunReport  # noqa: E402
from speedtronic.storage.lock import read_lock_record  # noqa: E402
from speedtronic.training.metrics import read_events  # noqa: E402

RECIPE = str(ROOT / "configs/stdlib.yaml")
NUM_STEPS = 240
NUM_KILLS = 2

console = Console(highlight=False)


@dataclass
class Killer:
    """Kills the training process of the run in `directory` when it reaches each of `at_steps`."""

    directory: Path
    at_steps: list[int]
    killed_at: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        last_pid = None
        for step in self.at_steps:
            pid = None
            while pid is None or pid == last_pid or self.last_step() < step:
                if self.done.wait(0.01):
                    return
                pid = read_lock_record(self.directory / "checkpoints").get("pid")
            assert isinstance(pid, int)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while _alive(pid):  # until its parent has reaped it
                if self.done.wait(0.01):
                    return
            self.killed_at.append(self.last_step())
            console.print(f"[bold red]✗ killed process {pid} with SIGKILL after step {step}[/]")
            last_pid = pid

    def last_step(self) -> int:
        """Return the newest step in the metrics file, which is written line by line."""
        with suppress(OSError, ValueError, IndexError):
            *_, last, _ = _metrics(self.directory).read_bytes().split(b"\n")
            return int(json.loads(last)["step"])
        return 0


def main() -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(description="Crash, resume, and prove the same bits.")
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills")
    seed = parser.parse_args().seed
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    output = ROOT / "runs/demo"
    shutil.rmtree(output, ignore_errors=True)

    console.rule("[bold]1. Two steps, then two more")
    two_steps(output / "resume-demo")
    console.rule(f"[bold]2. In chunks, killed {NUM_KILLS} times at random moments (seed {seed})")
    report, kills = interrupted(output / "interrupted", random.Random(seed))
    console.rule("[bold]3. The same run, uninterrupted")
    command(
        "train", "--config", RECIPE, "--set", f"run.max_steps={NUM_STEPS}",
        "--output-dir", str(output / "uninterrupted"),
    )  # fmt: skip
    console.rule("[bold]Result")
    same = show_result(output, report, kills)
    return 0 if same and len(kills) == NUM_KILLS else 1


def two_steps(output: Path) -> None:
    """Run the two commands of the reference page's demonstration, word for word."""
    smoke = str(ROOT / "configs/smoke.yaml")
    arguments = ["train", "--config", smoke, "--device", "cpu", "--output-dir", str(output)]
    command(*arguments, "--max-steps", "2")
    command(*arguments, "--max-steps", "4", "--resume")


def command(*arguments: str) -> None:
    """Show and run the `speedtronic` command."""
    shown = " ".join(argument.removeprefix(f"{ROOT}/") for argument in arguments)
    console.print(f"[bold green]$ speedtronic {shown}[/]", soft_wrap=True)
    subprocess.run([sys.executable, "-m", "speedtronic", *arguments], check=True, cwd=ROOT)


def interrupted(output: Path, rng: random.Random) -> tuple[RunReport, list[int]]:
    """Run the flow, and kill its training process on the way.

    Returns:
        Its report, and the last step that each killed process had finished.
    """
    killer = Killer(output, sorted(rng.sample(range(5, NUM_STEPS - 5), NUM_KILLS)))
    thread = threading.Thread(target=killer.run, daemon=True)
    thread.start()
    try:
        report = train(RECIPE, output_dir=str(output), max_steps=NUM_STEPS)
    finally:
        killer.done.set()
        thread.join()
    return report, killer.killed_at


def show_result(output: Path, report: RunReport, kills: list[int]) -> bool:
    """Print the comparison and draw both losses; True if the final states are identical."""
    names = ("interrupted", "uninterrupted")
    finals = [survey(open_storage(f"{output / name}/checkpoints")).checkpoints[0] for name in names]
    repeated = [at - back for at, back in zip(kills, report.restores[1:], strict=False)]
    same = finals[0].state_digest == finals[1].state_digest and finals[0].step == finals[1].step

    table = Table(box=None, pad_edge=False)
    for column in ("", *names):
        table.add_column(column)
    table.add_row("chunks", str(len(report.chunks)), "1")
    table.add_row("attempts", str(report.attempts), "1")
    table.add_row("killed after step", ", ".join(map(str, kills)) or "never", "never")
    table.add_row("resumed from step", ", ".join(map(str, report.restores[1:])) or "-", "-")
    table.add_row("steps repeated", str(sum(repeated)), "0")
    table.add_row("final step", *(str(final.step) for final in finals))
    console.print(table)
    console.print("\nstate digest: weights, optimizer, random numbers, data position, counters")
    for name, final in zip(names, finals, strict=True):
        console.print(f"  {name:13}  {final.state_digest}")
    verdict = "[bold green]identical[/]" if same else "[bold red]DIFFERENT[/]"
    console.print(f"The two final states are {verdict}.\n")

    picture = output / "loss.png"
    events = {name: read_events(_metrics(output / name), "train_step") for name in names}
    plot_losses(
        picture,
        {"uninterrupted": events["uninterrupted"], "interrupted": events["interrupted"]},
        marks={"interrupted": kills},
        title=f"Killed {len(kills)} times, and the same to the bit" if same else "Different!",
    )
    console.print(f"The loss of both, one over the other: {picture.relative_to(ROOT)}")
    return same


def _metrics(directory: Path) -> Path:
    return directory / "metrics.jsonl"


def _alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
