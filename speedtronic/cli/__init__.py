"""The `speedtronic` command.

Exit codes: 0 good; 1 findings or a failed run; 2 wrong use; 129, 130 and 143 stopped by SIGHUP,
Ctrl-C and SIGTERM.
"""

import argparse
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from types import FrameType
from typing import Any, NoReturn

from speedtronic.cli import maintenance
from speedtronic.config.config import SpeedtronicConfig, split_target
from speedtronic.config.parsing import parse_assignment
from speedtronic.errors import ConfigError, SpeedtronicError, UsageError
from speedtronic.redaction import scrub
from speedtronic.shutdown import SAVE_SIGNAL, enforce_grace_period
from speedtronic.worker import openmp

# torch takes over a second to import, so what needs it is imported where it is used.


STOP_S = 1.5  # longer than that, nobody who asked us to end has to wait for it


class _Stopped(BaseException):
    """A stop signal, so that files and locks are let go on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.command
    os.environ.update(openmp.environment())  # before any command loads torch
    trains = command is _train

    def end(number: int) -> NoReturn:
        _say_stopped(number, trains)
        os._exit(128 + number)

    _install_handlers(trains)
    try:
        with enforce_grace_period(STOP_S, end):
            return command(args)
    except SpeedtronicError as error:
        _report(str(error), args.debug)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _say_stopped(signal.SIGINT, trains)
        return 128 + signal.SIGINT
    except _Stopped as stopped:
        _say_stopped(stopped.number, trains)
        return 128 + stopped.number
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 1
    except Exception as error:
        _report(f"{type(error).__name__}: {error} (--debug shows where)", args.debug)
        return 1


def _install_handlers(trains: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _on_stop)
    if trains and signal.getsignal(SAVE_SIGNAL) is signal.SIG_DFL:
        signal.signal(SAVE_SIGNAL, _nothing_to_save)


def _on_stop(number: int, frame: FrameType | None) -> NoReturn:
    raise _Stopped(number)


def _nothing_to_save(number: int, frame: FrameType | None) -> None:
    """Until training begins; it must not end the process."""


def _say_stopped(number: int, trains: bool) -> None:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    with suppress(OSError):  # the terminal may be what has gone
        then = "; --resume goes on" if trains else ""
        print(f"speedtronic: stopped by {name}{then}", file=sys.stderr, flush=True)


def _report(message: str, debug: bool) -> None:
    if debug:
        print(scrub(traceback.format_exc()), end="", file=sys.stderr)
    print(f"speedtronic: {scrub(message)}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    configured = argparse.ArgumentParser(add_help=False)
    configured.add_argument("--config", required=True, metavar="FILE", help="YAML or JSON")
    configured.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one key, such as optimizer.lr=1e-4 or data.dataset_args.n=2; may be repeated",
    )
    parser = argparse.ArgumentParser(
        prog="speedtronic",
        description="Train PyTorch models in chunks: interrupted anywhere, the same to the bit.",
    )
    parser.add_argument("--version", action="version", version=version("speedtronic-flows"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", parents=[common, configured], help="train or resume a run")
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
    train.set_defaults(command=_train)

    validate = commands.add_parser(
        "validate", parents=[common, configured], help="check a configuration and print it in full"
    )
    validate.add_argument(
        "--legacy", action="store_true", help="FILE is of Speedtronic 2.0; print today's form"
    )
    validate.set_defaults(command=_validate)

    inspect = commands.add_parser(
        "inspect", parents=[common], help="show and verify the checkpoints of a run; reads only"
    )
    inspect.add_argument("directory", metavar="DIR", help="a run's output or checkpoint directory")
    inspect.add_argument("--json", action="store_true", help="print a JSON object")
    inspect.set_defaults(command=_inspect)

    maintenance.add_commands(commands, common)

    schema = commands.add_parser(
        "schema", parents=[common], help="print the JSON schema of a configuration, for editors"
    )
    schema.set_defaults(command=_schema)
    return parser


def _configured(args: argparse.Namespace) -> tuple[SpeedtronicConfig, int | None]:
    """The configuration with `--set` applied, and the target that `--set run.max_steps` gives."""
    assignments: dict[str, object] = {}
    for key, value in map(parse_assignment, args.set):
        if key in assignments and assignments[key] != value:
            raise ConfigError(f"--set {key} is given twice, with two values")
        assignments[key] = value
    load = _load_legacy if getattr(args, "legacy", False) else _load
    return split_target(load(args.config), assignments)


def _load(path: str) -> SpeedtronicConfig:
    try:
        return SpeedtronicConfig.load(path)
    except ConfigError as error:
        from speedtronic.legacy.config import GONE

        if any(f": {key}: unknown key" in str(error) for key in GONE):
            raise ConfigError(
                f"{error}\n{path} is of Speedtronic 2.0; speedtronic validate --legacy prints it "
                "in today's form"
            ) from None
        raise


def _load_legacy(path: str) -> SpeedtronicConfig:
    from speedtronic.legacy.config import load

    config, ignored = load(path)
    if ignored:
        print(
            f"speedtronic: {path}: left out, for nothing here acts on them: {', '.join(ignored)}",
            file=sys.stderr,
        )
    return config


def _train(args: argparse.Namespace) -> int:
    config, target = _configured(args)
    flags = {"run.output_dir": args.output_dir, "run.device": args.device}
    config = config.override({key: value for key, value in flags.items() if value is not None})
    horizon = None
    if args.max_steps is not None:
        config = config.override({"run.max_steps": args.max_steps})
        horizon = target = config.run.max_steps
        config = config.override({"scheduler.max_steps": horizon})

    if (args.fork_from is None) != (args.at_step is None):
        raise UsageError("--fork-from DIR and --at-step N go together")

    from rich.console import Console

    from speedtronic.run_directory import find_store, logging_path
    from speedtronic.runtime import build as runtime
    from speedtronic.runtime import progress as console

    fork = args.fork_from and (find_store(args.fork_from).root, args.at_step)

    console.configure_logging(
        config.logging.level,
        logging_path(config, config.logging.file),
        console.terminal_handler(),
    )
    goal = config.run.max_steps if target is None else target
    terminal = Console(stderr=True)
    with ExitStack() as stack:
        progress: Any
        if terminal.is_terminal:
            progress = stack.enter_context(console.ProgressBar(goal, terminal))
        else:
            progress = console.PlainProgress(goal, logging.getLogger("speedtronic"))
        result = runtime.train_from_config(
            config,
            resume=args.resume,
            trust_legacy=args.trust_legacy,
            max_steps=target,
            schedule_max_steps=horizon,
            allow_changes=args.allow_change,
            init_from=args.init_from,
            fork_from=fork,
            hooks=[progress],
            on_step=getattr(progress, "on_step", None),
        )
    if not result.metrics["updates"]:
        print(f"nothing to train: the run is at step {result.steps}, the target is {goal}")
    loss = "none" if result.final_loss is None else f"{result.final_loss:.6f}"
    print(
        f"step {result.steps}  samples {result.samples}  tokens {result.tokens}  loss {loss}  "
        f"{result.elapsed_s:.1f} s  {config.run.output_dir}"
    )
    return 0


def _validate(args: argparse.Namespace) -> int:
    config, target = _configured(args)
    if target is not None:
        config = config.override({"run.max_steps": target})
    print(config.to_yaml(redact_secrets=True), end="")
    return 0


def _schema(args: argparse.Namespace) -> int:
    from speedtronic.config.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from speedtronic.checkpoint import survey
    from speedtronic.cli.text import survey_as_text
    from speedtronic.run_directory import find_store

    found = survey(find_store(args.directory))
    print(json.dumps(found.to_dict(), indent=2) if args.json else survey_as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
