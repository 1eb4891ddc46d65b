"""Objects of the user's own code, named in a configuration as `package.module:attribute`."""

import importlib
import operator
import sys
from pathlib import Path
from typing import Any

from speedtronic.errors import ConfigError
from speedtronic.redaction import scrub


def import_object(key: str, name: str) -> Any:
    """Import what `name` names, from the working directory or the installed packages.

    Args:
        key: of the configuration, for the message.
        name: `package.module:attribute`; the attribute may be dotted.

    Raises:
        ConfigError: no such module or attribute, or the module fails to import.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # the `speedtronic` script, unlike `python -m`, leaves it out
        sys.path.insert(0, here)
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module_name))
    except AttributeError as error:
        raise ConfigError(f"{key} is {name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(
            f"{key} is {name!r}; it does not import: {type(error).__name__}: {error}"
        ) from error


def call_factory(key: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """What the factory `name` returns.

    Raises:
        ConfigError: it does not import, is no function, or raises; the message says which.
    """
    factory = import_object(key, name)
    if not callable(factory):
        raise ConfigError(f"{key} is {name!r}: a {type(factory).__name__}, expected a function")
    try:
        return factory(*args, **kwargs)
    except Exception as error:
        raise ConfigError(
            scrub(f"{key} is {name!r}; it raised {type(error).__name__}: {error}")
        ) from error
