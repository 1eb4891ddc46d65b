"""Stores, verifies and selects checkpoints; knows nothing of training."""

from speedtronic.checkpoint.loading import Checkpoint
from speedtronic.checkpoint.records import Manifest, Pointer
from speedtronic.checkpoint.store import CheckpointStore
from speedtronic.checkpoint.survey import survey
from speedtronic.storage.lease import Lease
from speedtronic.storage.lock import RunLock, open_lock
from speedtronic.storage.urls import open_storage

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
