"""Defines every exception of the package, drawn here as a tree.

SpeedtronicError
├── UsageError (ValueError)         the caller can correct it; the command line exits with 2
│   ├── ConfigError                   a wrong key, value or file of the configuration
│   ├── DataError                     a text or dataset that cannot be trained on
│   ├── DeviceError                   a device that this machine does not have
│   ├── OutputDirError (OSError)      a directory that cannot be written
│   ├── UnsavableError (TypeError)    training state that no checkpoint can hold
│   ├── RunExistsError                a fresh run where checkpoints already exist
│   └── DriftError                    a configuration that differs from the run's
├── CheckpointError                 the command line exits with 1
│   ├── CorruptError                  the bytes are not those that were saved
│   ├── NoValidCheckpointError        files exist, but none is a good checkpoint
│   ├── LegacyStoreError              files of Speedtronic 2.0
│   ├── UnsupportedFormatError        written by a newer version of this program
│   ├── RestoreError                  a good checkpoint that does not fit the live objects
│   └── StorageError (OSError)        the disk or object store failed
│       └── StorageFullError            ... because it is full
├── RunLockedError                  another process trains in this directory
├── NonFiniteError (ArithmeticError)  NaN or infinity in the loss or a parameter
└── WorkerError                     a chunk's process
    ├── WorkerDied                    ended by a signal or an exit code
    ├── WorkerHung                    no progress for too long; killed
    └── WorkerFailed                  reported an exception
"""


class SpeedtronicError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(SpeedtronicError, ValueError):
    """A mistake that the caller can correct; nothing was written or lost."""


class ConfigError(UsageError):
    """A configuration that cannot be used; the message names the key or the file."""


class DataError(UsageError):
    """Data that cannot be trained on; the message names the file."""


class DeviceError(UsageError):
    """The device asked for is not on this machine."""


class OutputDirError(UsageError, OSError):
    """The output directory cannot be created or written."""


class UnsavableError(UsageError, TypeError):
    """The training state holds something that no checkpoint can; the message names it."""


class RunExistsError(UsageError):
    """A fresh run was requested where checkpoints of a run already exist."""


class DriftError(UsageError):
    """A resumed run's configuration would change its numbers; the message names each key."""


class CheckpointError(SpeedtronicError):
    """Base of all errors about stored checkpoints."""


class CorruptError(CheckpointError):
    """The bytes of a file are not the bytes that were saved."""


class NoValidCheckpointError(CheckpointError):
    """Checkpoint files exist and none of them verifies; the message names each with its reason."""


class LegacyStoreError(CheckpointError):
    """Payloads of the older format, without any manifest."""


class UnsupportedFormatError(CheckpointError):
    """A newer version of this program wrote the checkpoint; it is intact and left alone."""


class RestoreError(CheckpointError):
    """A verified checkpoint does not fit the present model, optimizer, data or machine."""


class StorageError(CheckpointError, OSError):
    """A storage operation failed; earlier checkpoints are intact."""


class StorageFullError(StorageError):
    """No space is left; earlier checkpoints are intact.

    Attributes:
        needed_bytes: needed by the operation; None if unknown.
        free_bytes: found free; None if unknown.
    """

    needed_bytes: int | None = None
    free_bytes: int | None = None


class RunLockedError(SpeedtronicError):
    """Another process holds this run's lock; the message names it."""


class NonFiniteError(SpeedtronicError, ArithmeticError):
    """The loss or a parameter is NaN or infinite; nothing was saved for this step."""


class WorkerError(SpeedtronicError):
    """A chunk's worker process did not finish the chunk."""


class WorkerDied(WorkerError):
    """The worker process ended before it answered; the message names the signal or exit code.

    Attributes:
        on_request: whether it ended in an orderly way because of SIGTERM.
    """

    def __init__(self, message: str, *, on_request: bool) -> None:
        super().__init__(message)
        self.on_request = on_request


class WorkerHung(WorkerError):
    """The worker made no progress for `chunk.hang_timeout_s` seconds and was killed."""


class WorkerFailed(WorkerError):
    """The worker reported an exception.

    Attributes:
        kind: name of the exception's class inside the worker.
        retryable: whether another attempt may succeed; False if a person has to correct something.
    """

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
