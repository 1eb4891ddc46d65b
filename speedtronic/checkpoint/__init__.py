"""Checkpoints as bytes on disk; knows nothing of training."""

from speedtronic.checkpoint.lock import RunLock
from speedtronic.checkpoint.records import Manifest, Pointer
from speedtronic.checkpoint.storage import open_storage
from speedtronic.checkpoint.store import Checkpoint, CheckpointStore
from speedtronic.checkpoint.verify import survey

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Manifest",
    "Pointer",
    "RunLock",
    "open_storage",
    "survey",
]
