"""Reads the configuration that a command is given by `--config` and `--set`."""

import argparse
import sys

from speedtronic.config.config import SpeedtronicConfig, split_target
from speedtronic.config.parsing import parse_assignment
from speedtronic.errors import ConfigError


def configured(args: argparse.Namespace) -> tuple[SpeedtronicConfig, int | None]:
    """Read the file of `--config` and apply `--set`.

    Returns:
        The configuration, and the target that `--set run.max_steps` gives, or None.

    Raises:
        ConfigError: the configuration cannot be used; one line for each problem.
    """
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
