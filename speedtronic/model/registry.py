"""Build a model by its name in the configuration: ours, a registered one, or an import.

A model is any `nn.Module`. It is called with a batch: a dict becomes keyword arguments, a tuple or
list positional ones, a tensor the one argument. It returns the loss as a scalar tensor, a dict with
`loss` or with causal `logits`, or a tuple that starts with the loss.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from speedtronic.config.references import substitute
from speedtronic.config.sections import REFERENCE_MODEL
from speedtronic.errors import ConfigError
from speedtronic.model.transformer import ReferenceTransformer
from speedtronic.user_code import call_factory, import_factory

if TYPE_CHECKING:
    from speedtronic.config.sections import ModelConfig

Builder = Callable[..., nn.Module]

_BUILDERS: dict[str, Builder] = {}


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Register the decorated class or function as `name`; it is called with the section's keys.

    Raises:
        ValueError: `name` is taken; two models under one name would make a checkpoint ambiguous.
    """

    def register(builder: Builder) -> Builder:
        if name in (*_BUILDERS, REFERENCE_MODEL):
            raise ValueError(f"a model named {name!r} is registered already")
        _BUILDERS[name] = builder
        return builder

    return register


def build_model(section: ModelConfig) -> nn.Module:
    """Build the model that `section.name` names; its weights come from the global torch RNG.

    Args:
        section: the `model` section; a model of one's own gets the keys given there.

    Raises:
        ConfigError: no such model, its factory fails or returns something else.
    """
    name = section.name
    if section.is_reference:
        return ReferenceTransformer(**section.model_dump(exclude={"name"}))
    if ":" in name:
        builder = import_factory("model.name", name)
    elif name in _BUILDERS:
        builder = _BUILDERS[name]
    else:
        known = [REFERENCE_MODEL, *sorted(_BUILDERS)]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"model.name is {name!r}; {hint}known are {', '.join(known)}, or any "
            "package.module:factory"
        )
    given = section.factory_arguments()
    keywords = substitute(given, "model")
    model = call_factory("model.name", name, builder, keywords=keywords, shown=given)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.name is {name!r}; it returned a {type(model).__name__}, expected an nn.Module"
        )
    return model
