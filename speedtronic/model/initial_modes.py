"""Check what a model's factory returned: which modules train, and what has no shape yet."""

import logging
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from speedtronic.errors import ConfigError

logger = logging.getLogger(__name__)


def settle_modes(model: nn.Module) -> None:
    """Keep the train and eval modes that the factory set; only where it set none, train.

    It set none where no module at all trains, and where a model of Hugging Face's is as
    `from_pretrained` returns it, in eval mode, though some of its parameters are to be trained.
    """
    if not any(module.training for module in model.modules()):
        _train(model)
        return
    for module in model.modules():
        untouched = hasattr(type(module), "from_pretrained") and not module.training
        if untouched and any(parameter.requires_grad for parameter in module.parameters()):
            _train(module)


def _train(module: nn.Module) -> None:
    logger.info(
        "the factory returned %s in eval mode: it is put into train mode. For parts that stay in "
        "eval mode, call train() in the factory and then eval() on them",
        type(module).__name__,
    )
    module.train()


def refuse_lazy(name: str, model: nn.Module) -> None:
    """Refuse parameters and buffers whose shape is unknown before the first batch.

    Raises:
        ConfigError: names the first module that has one.
    """
    for path, module in model.named_modules():
        held: dict[str, Any] = {**module._parameters, **module._buffers}
        for key, value in held.items():
            where = f"{path}.{key}".lstrip(".")
            if is_lazy(value):
                raise ConfigError(
                    f"model.name is {name!r}; the shape of {where} ({type(module).__name__}) is "
                    "not known before the first batch; call the model once in its factory, or give "
                    "the layer its sizes"
                )
            if value is not None and value.is_meta:
                raise ConfigError(
                    f"model.name is {name!r}; {where} ({type(module).__name__}) is on the device "
                    "meta, without values; load or make its weights in the factory"
                )
