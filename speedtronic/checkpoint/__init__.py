"""Checkpoints as bytes on disk; knows nothing of training."""

from speedtronic.checkpoint.lease import Lease
from speedtronic.checkpoint.lock import RunLock, open_lock
from speedtronic.checkpoint.records import Manifest, Pointer
from speedtronic.checkpoint.store import Checkpoint, CheckpointStore
from speedtronic.checkpoint.urls import open_storage
from speedtronic.checkpoint.verify import survey

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Lease",
    "Manifest",
    "Pointer",
    "RunLock",
    "open_lock",
    "open_storage",
    "survey",
]
