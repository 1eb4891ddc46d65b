"""torch.compile that gives up with a warning instead of ending the run."""

import logging
from typing import Any

import torch
from torch import nn

from speedtronic.training.rng import capture_rng, restore_rng

logger = logging.getLogger(__name__)


class Compiled:
    """Calls the compiled model, or the model itself once compiling has failed.

    It wraps the call only: the checkpoint holds the model's own parameter names, without the
    `_orig_mod.` of a compiled module.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._compiled: Any = torch.compile(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is None:
            return self._model(*args, **kwargs)
        rng = capture_rng(self._device)
        try:
            return self._compiled(*args, **kwargs)
        except Exception as error:
            logger.warning(
                "compile: failed with %s: %s; going on without it",
                type(error).__name__,
                str(error).splitlines()[0] if str(error) else "",
            )
            self._compiled = None
            restore_rng(rng, self._device)
        # An error of the model's own, not of its compilation, comes again here.
        return self._model(*args, **kwargs)
