"""The `speedtronic` command.

Exit codes: 0 good; 1 findings or a failed run; 2 wrong use; 129, 130 and 143 stopped by SIGHUP,
Ctrl-C and SIGTERM.
"""

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

from speedtronic.cli import maintenance, train
from speedtronic.cli.argument_parser import SuggestingParser
from speedtronic.cli.configured import configured
from speedtronic.errors import SpeedtronicError, UsageError
from speedtronic.redaction import scrub
from speedtronic.shutdown import SAVE_SIGNAL, enforce_grace_period
from speedtronic.worker import openmp

# torch takes over a second to import, so what needs it is imported where it is used.


STOP_S = 1.5  # after a stop signal the process ends within this time, whatever it is doing


class _Stopped(BaseException):
    """Raised by a stop signal, so that files are closed and locks released on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.command
    os.environ.update(openmp.environment())  # before any command loads torch
    trains = command is train.run

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
    """Ignore SIGUSR1 until training begins: its default action would end the process."""


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
    config_options = argparse.ArgumentParser(add_help=False)
    config_options.add_argument("--config", required=True, metavar="FILE", help="YAML or JSON")
    config_options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one key, such as optimizer.lr=1e-4 or data.dataset_args.n=2; may be repeated",
    )
    parser: argparse.ArgumentParser = SuggestingParser(
        prog="speedtronic",
        description="Train PyTorch models in chunks: interrupted anywhere, the same to the bit.",
    )
    parser.add_argument("--version", action="version", version=version("speedtronic-flows"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train.add_command(commands, [common, config_options])

    validate = commands.add_parser(
        "validate",
        parents=[common, config_options],
        help="check a configuration and print it in full",
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


def _validate(args: argparse.Namespace) -> int:
    config, target = configured(args)
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
