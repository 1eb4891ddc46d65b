"""Adds the commands for runs that are not being trained: verify, recover, rollback and others."""

import argparse
import json
from typing import Any

# torch takes over a second to import, so what needs it is imported where it is used.


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers of these commands."""
    verify = commands.add_parser(
        "verify",
        parents=[common],
        help="whether a resume would work, and what is wrong; reads only",
    )
    _directories(verify)
    verify.add_argument(
        "--drill",
        choices=["none", "load", "replay", "resume"],
        default="none",
        help="prove it: replay the last interval and compare, or train a few steps, in scratch",
    )
    verify.add_argument("--config", metavar="FILE", help="instead of the run's own config.yaml")
    verify.add_argument("--json", action="store_true", help="print a JSON object")
    verify.set_defaults(command=_verify)

    recover = commands.add_parser(
        "recover", parents=[common], help="repair what verify finds; deletes no checkpoint"
    )
    _directories(recover)
    recover.add_argument("--config", metavar="FILE", help="instead of the run's own config.yaml")
    recover.add_argument("--json", action="store_true", help="print a JSON object")
    recover.set_defaults(command=_recover)

    rollback = commands.add_parser(
        "rollback", parents=[common], help="go back to a checkpoint; newer ones go to quarantine"
    )
    _directory(rollback)
    rollback.add_argument("--to-step", type=int, required=True, metavar="N")
    rollback.set_defaults(command=_rollback)

    export = commands.add_parser(
        "export", parents=[common], help="write the weights of a checkpoint as safetensors"
    )
    _directory(export)
    export.add_argument("--to", required=True, metavar="FILE", help="a name in .safetensors")
    export.add_argument("--step", type=int, metavar="N", help="instead of the newest good one")
    export.set_defaults(command=_export)

    compare = commands.add_parser(
        "compare", parents=[common], help="whether two training states are the same, to the bit"
    )
    for name in ("A", "B"):
        compare.add_argument(
            name.lower(), metavar=name, help="a run's directory (its newest good one) or a .pt file"
        )
    compare.set_defaults(command=_compare)


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="a run's output or checkpoint directory")


def _directories(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", metavar="DIR", nargs="+", help="a run's output directory, or a glob"
    )


def _verify(args: argparse.Namespace) -> int:
    return _examine(args, repair=False, drill=args.drill)


def _recover(args: argparse.Namespace) -> int:
    return _examine(args, repair=True, drill="none")


def _examine(args: argparse.Namespace, *, repair: bool, drill: str) -> int:
    from speedtronic.cli.text import report_as_text
    from speedtronic.config import SpeedtronicConfig
    from speedtronic.recovery import LoadProcess, expand, run_checklist

    config = SpeedtronicConfig.load(args.config) if args.config else None
    directories = expand(args.directories)
    with LoadProcess() as loader:
        reports = []
        for directory in directories:
            report = run_checklist(
                directory, repair=repair, drill=drill, config=config, loader=loader
            )
            reports.append(report)
            if not args.json:
                print(report_as_text(report), flush=True)
    if args.json:
        records = [report.to_dict() for report in reports]
        print(json.dumps(records[0] if len(records) == 1 else records, indent=2))
    return 0 if all(report.healthy for report in reports) else 1


def _rollback(args: argparse.Namespace) -> int:
    from speedtronic.recovery.rollback import roll_back
    from speedtronic.run_directory import find_store

    pointer, moved = roll_back(find_store(args.directory), args.to_step)
    for name in moved:
        print(f"moved to {name}")
    print(f"a resume starts from step {pointer.step}  {pointer.state_digest}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from speedtronic.checkpoint.export import export_weights
    from speedtronic.checkpoint.loading import load_newest, load_step
    from speedtronic.run_directory import find_store

    store = find_store(args.directory)
    checkpoint = load_newest(store) if args.step is None else load_step(store, args.step)
    num_tensors = export_weights(checkpoint, args.to)
    print(f"{args.to}: {num_tensors} tensors of step {checkpoint.manifest.step}")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from speedtronic.checkpoint.digest import state_digest
    from speedtronic.recovery.compare import difference, load_state

    (name_a, a), (name_b, b) = load_state(args.a), load_state(args.b)
    differing = difference(a, b)
    if differing is None:
        print(f"the same: {name_a} and {name_b}\n{state_digest(a)}")
        return 0
    print(f"differ: {name_a} (found) and {name_b} (expected)\n{differing}")
    return 1
