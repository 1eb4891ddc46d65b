"""Speedtronic: train PyTorch models in chunks that survive anything and end in the same bits.

What is listed here may be imported from here, and stays. Each name is loaded when it is first asked
for, so that `import speedtronic` loads neither torch nor prefect.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speedtronic.checkpoint import Checkpoint, CheckpointStore, Pointer, open_storage
    from speedtronic.config import SpeedtronicConfig
    from speedtronic.errors import SpeedtronicError
    from speedtronic.model import register_model
    from speedtronic.report import RunReport
    from speedtronic.runtime import build_runtime, train_from_config
    from speedtronic.training.trainer import TrainResult
    from speedtronic.worker.chunk import ChunkWorker

_MODULES = {
    "Checkpoint": "checkpoint",
    "CheckpointStore": "checkpoint",
    "ChunkWorker": "worker.chunk",
    "Pointer": "checkpoint",
    "RunReport": "report",
    "SpeedtronicConfig": "config",
    "SpeedtronicError": "errors",
    "TrainResult": "training.trainer",
    "build_runtime": "runtime",
    "open_storage": "checkpoint",
    "register_model": "model",
    "train_from_config": "runtime",
}

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "ChunkWorker",
    "Pointer",
    "RunReport",
    "SpeedtronicConfig",
    "SpeedtronicError",
    "TrainResult",
    "build_runtime",
    "open_storage",
    "register_model",
    "train_from_config",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name, and return what the name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
