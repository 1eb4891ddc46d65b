"""The command `speedtronic train`: trains or resumes a run in this process."""

import argparse
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from speedtronic.cli.configured import configured
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import UsageError

if TYPE_CHECKING:
    from speedtronic.runtime.start_options import StartOptions
    from speedtronic.training.trainer import TrainResult

# torch takes over a second to import, so what needs it is imported where it is used.


def add_command(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    train = commands.add_parser("train", parents=parents, help="train or resume a run")
    train.add_argument("--output-dir", metavar="DIR", help="instead of run.output_dir")
    train.add_argument(
        "--resume", action="store_true", help="go on from the newest good checkpoint"
    )
    train.add_argument(
        "--trust-legacy",
        action="store_true",
        help="with --resume: take up a run of Speedtronic 2.0 (docs/migration.md)",
    )
    train.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="for run.device")
    train.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="train to step N, where the schedule then ends too (--set run.max_steps=N moves the "
        "target only)",
    )
    train.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="KEY",
        help="let KEY, such as optimizer.lr, differ from the run's checkpoint; may be repeated",
    )
    train.add_argument(
        "--init-from", metavar="FILE", help="start with the weights of a .pt or .safetensors file"
    )
    train.add_argument(
        "--fork-from", metavar="DIR", help="start a new run at a checkpoint of another run ..."
    )
    train.add_argument("--at-step", type=int, metavar="N", help="... of this step")
    train.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Train as the arguments say; returns the exit code."""
    config, target = configured(args)
    flags = {"run.output_dir": args.output_dir, "run.device": args.device}
    config = config.override({key: value for key, value in flags.items() if value is not None})
    horizon = None
    if args.max_steps is not None:
        config = config.override({"run.max_steps": args.max_steps})
        horizon = target = config.run.max_steps
        config = config.override({"scheduler.max_steps": horizon})
    if (args.fork_from is None) != (args.at_step is None):
        raise UsageError("--fork-from DIR and --at-step N go together")

    from speedtronic.run_directory import find_store
    from speedtronic.runtime.start_options import StartOptions

    start = StartOptions(
        resume=args.resume,
        trust_legacy=args.trust_legacy,
        target=target,
        schedule_max_steps=horizon,
        allow_changes=args.allow_change,
        init_from=args.init_from,
        fork_from=args.fork_from and (find_store(args.fork_from).root, args.at_step),
    )
    goal = config.run.max_steps if target is None else target
    result = _train(config, start, goal)
    if not result.metrics["updates"]:
        print(f"nothing to train: the run is at step {result.steps}, the target is {goal}")
    loss = "none" if result.final_loss is None else f"{result.final_loss:.6f}"
    print(
        f"step {result.steps}  samples {result.samples}  tokens {result.tokens}  loss {loss}  "
        f"{result.elapsed_s:.1f} s  {config.run.output_dir}"
    )
    return 0


def _train(config: SpeedtronicConfig, start: "StartOptions", goal: int) -> "TrainResult":
    """Train, showing a bar on a terminal and log lines elsewhere."""
    from rich.console import Console

    from speedtronic.run_directory import logging_path
    from speedtronic.runtime import build as runtime
    from speedtronic.runtime import progress as console

    console.configure_logging(
        config.logging.level,
        logging_path(config, config.logging.file),
        console.terminal_handler(),
    )
    terminal = Console(stderr=True)
    with ExitStack() as stack:
        progress: Any
        if terminal.is_terminal:
            progress = stack.enter_context(console.ProgressBar(goal, terminal))
        else:
            progress = console.PlainProgress(goal, logging.getLogger("speedtronic"))
        return runtime.train_from_config(
            config,
            start=start,
            max_steps=start.target,
            hooks=[progress],
            on_step=getattr(progress, "on_step", None),
        )
