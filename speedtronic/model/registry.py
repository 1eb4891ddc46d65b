"""Models by name, so that a configuration can choose one.

A model is any `nn.Module` whose `forward(input_ids, labels)` returns a dict with `loss`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from speedtronic.errors import ConfigError
from speedtronic.model.transformer import ReferenceTransformer

if TYPE_CHECKING:
    from speedtronic.sections import ModelConfig

Builder = Callable[["ModelConfig"], nn.Module]

_BUILDERS: dict[str, Builder] = {}


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Make the decorated `builder(model section) -> nn.Module` known as `name`.

    Raises:
        ValueError: `name` is taken; two models under one name would make a checkpoint ambiguous.
    """

    def register(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"a model named {name!r} is registered already")
        _BUILDERS[name] = builder
        return builder

    return register


def build_model(section: ModelConfig) -> nn.Module:
    """Build the model that `section.name` names; its weights come from the global torch RNG.

    Args:
        section: the `model` section of the configuration, handed to the builder as it is.

    Raises:
        ConfigError: no model has this name, or its sizes do not fit each other.
    """
    builder = _BUILDERS.get(section.name)
    if builder is None:
        close = difflib.get_close_matches(section.name, _BUILDERS, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = ", ".join(sorted(_BUILDERS))
        raise ConfigError(f"model.name is {section.name!r}; {hint}known are {known}")
    return builder(section)


@register_model("reference_transformer")
def _build_reference(section: ModelConfig) -> nn.Module:
    return ReferenceTransformer(
        vocab_size=section.vocab_size,
        max_seq_len=section.max_seq_len,
        n_layer=section.n_layer,
        n_head=section.n_head,
        n_kv_head=section.n_kv_head,
        d_model=section.d_model,
        d_ff=section.d_ff,
        dropout=section.dropout,
        tie_weights=section.tie_weights,
        rope_base=section.rope_base,
    )
