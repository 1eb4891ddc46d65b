"""Import and call what a configuration names as `package.module:attribute`."""

import importlib
import inspect
import logging
import operator
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from speedtronic.errors import ConfigError
from speedtronic.redaction import format_value, redact, scrub

_MAX_SHOWN = 8
_INSTALLED = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parent)}
)

logger = logging.getLogger(__name__)

_warned: set[tuple[str, str]] = set()  # factories of the older form that were warned about


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
        module = importlib.import_module(module_name)
    except Exception as error:
        place = _user_frame(error)
        at = f" (at {place})" if place else ""
        raise ConfigError(
            scrub(f"{key} is {name!r}; it does not import: {type(error).__name__}: {error}{at}")
        ) from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        raise ConfigError(f"{key} is {name!r}: {error}") from error


def import_factory(key: str, name: str) -> Callable[..., Any]:
    """Import the function or class that `name` names.

    Raises:
        ConfigError: it does not import or cannot be called.
    """
    factory = import_object(key, name)
    if not callable(factory):
        raise ConfigError(f"{key} is {name!r}: a {type(factory).__name__}, expected a function")
    return factory  # type: ignore[no-any-return]


def call_factory(
    key: str,
    name: str,
    factory: Callable[..., Any],
    *args: Any,
    keywords: Mapping[str, Any] | None = None,
    shown: Mapping[str, Any],
) -> Any:
    """Return what `factory(*args, **keywords)` returns.

    Args:
        key: of the configuration, for the message.
        name: of the factory in the configuration, for the message.
        factory: the user's function or class.
        args: positional arguments.
        keywords: keyword arguments; kept apart, so that they may be named `key` or `name` too.
        shown: the arguments as the message is to show them: as they stand in the configuration,
            without what environment variables put in. Secrets in them are blanked.

    Raises:
        ConfigError: it raised; the message has the exception, the line and the arguments.
    """
    try:
        return factory(*args, **(keywords or {}))
    except Exception as error:
        raise ConfigError(
            scrub(
                f"{key} is {name!r}; it raised {type(error).__name__}: {error} "
                f"(at {line_raised(error, factory)}; {_called_with(shown)})"
            )
        ) from error


def call_data_factory(
    key: str, name: str, keywords: Mapping[str, Any], *, shown: Mapping[str, Any]
) -> Any:
    """Import the factory `name` and call it with keyword arguments.

    One whose only parameter is named `args` gets the whole mapping instead, as all did before
    version 3.2; the first time a warning says so.

    Raises:
        ConfigError: it does not import, cannot be called, or raises.
    """
    factory = import_factory(key, name)
    if not _takes_one_mapping(factory):
        return call_factory(key, name, factory, keywords=keywords, shown=shown)
    if (key, name) not in _warned:
        _warned.add((key, name))
        logger.warning(
            "%s is %r, whose only parameter is named args: it is called with the whole mapping "
            "%s_args, as before version 3.2; name its parameters, or take **kwargs",
            key,
            name,
            key,
        )
    return call_factory(key, name, factory, dict(keywords), shown={"args": dict(shown)})


def line_raised(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Name the innermost line of the user's own code that an exception went through.

    Code of installed packages and of this one does not count, unless there is no other.

    Args:
        error: as caught; its traceback begins where it was caught.
        function: what was called there; where it refused its arguments, so that no line of it
            ran, its definition is named.

    Returns:
        `file:line in function`; the file relative to the working directory if it lies below.
    """
    if place := _user_frame(error):
        return place
    inner = list(traceback.walk_tb(error.__traceback__))[1:]
    if inner:
        frame, line = inner[-1]
        return _place(frame.f_code.co_filename, line, frame.f_code.co_name)
    defined = getattr(function, "__init__", None) if isinstance(function, type) else function
    code = getattr(defined, "__code__", None)
    if code is None:
        return "its call"
    return _place(code.co_filename, code.co_firstlineno, code.co_name)


def _user_frame(error: BaseException) -> str | None:
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if _is_users(file):
            return _place(file, line, frame.f_code.co_name)
    return None


def _is_users(file: str) -> bool:
    if file.startswith(("<frozen", "<string>")):
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"}.intersection(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


def _place(file: str, line: int, function: str) -> str:
    here, path = Path.cwd(), Path(file)
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}:{line}" + ("" if function == "<module>" else f" in {function}")


def _called_with(shown: Mapping[str, Any]) -> str:
    if not shown:
        return "called without arguments"
    blanked = redact(dict(shown))
    parts = [f"{name}={_shown(value)}" for name, value in list(blanked.items())[:_MAX_SHOWN]]
    more = f" and {len(blanked) - _MAX_SHOWN} more" if len(blanked) > _MAX_SHOWN else ""
    return f"called with {', '.join(parts)}{more}"


def _shown(value: Any) -> str:
    if isinstance(value, Path):
        return format_value(str(value))
    plain = value is None or isinstance(value, str | int | float | list | tuple | Mapping)
    return format_value(value) if plain else type(value).__name__


def _takes_one_mapping(factory: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # as of some functions written in C
        return False
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return (
        len(parameters) == 1 and parameters[0].name == "args" and parameters[0].kind in positional
    )
