"""Parses arguments, and suggests the right spelling of a misspelt option."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class SuggestingParser(argparse.ArgumentParser):
    """Names an option that it does not know, with the nearest one, before anything else.

    argparse itself complains first of what is missing: of `--config`, for somebody who has written
    `--confg`.
    """

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but end with an error at an unknown option."""
        self._given = sys.argv[1:] if args is None else args
        parsed, rest = super().parse_known_args(args, namespace)
        if any(argument.startswith("--") for argument in rest):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Print the usage and one line, and exit with 2."""
        known = self._option_string_actions
        for argument in self._given:
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                super().error(f"unrecognized argument {name}{hint}")
        super().error(message)
