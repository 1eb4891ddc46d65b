"""Every exception of the package, so that an `except` can be chosen by reading one file.

SpeedtronicError
├── UsageError (ValueError)         the caller can mend it; the command line exits with 2
│   ├── ConfigError                   a key, a value or a file of the configuration
│   ├── DataError                     text or data set that cannot be trained on
│   ├── DeviceError                   a device that is not there
│   ├── OutputDirError (OSError)      a directory that cannot be written
│   ├── UnsavableError (TypeError)    what no checkpoint can hold
│   ├── RunExistsError                a fresh run where a run already lives
│   └── DriftError                    a configuration that is not the run's
├── CheckpointError                 the command line exits with 1
│   ├── CorruptError                  bytes are not what was saved
│   ├── NoValidCheckpointError        files are there, none of them is good
│   ├── LegacyStoreError              files of the older format
│   ├── UnsupportedFormatError        written by a newer version of this program
│   ├── RestoreError                  good bytes that do not fit the live objects
│   └── StorageError (OSError)        the disk said no
│       └── StorageFullError            ... because it is full
├── RunLockedError                  another process trains in this directory
├── NonFiniteError (ArithmeticError)  NaN or infinity in the loss or a parameter
└── WorkerError                     a chunk's process
    ├── WorkerDied                    ended by a signal or an exit code
    ├── WorkerHung                    no progress for too long; killed
    └── WorkerFailed                  reported an exception
"""


class SpeedtronicError(Exception):
    """Base of every error raised on purpose."""


class UsageError(SpeedtronicError, ValueError):
    """Something the caller can mend: nothing was written and nothing was lost."""


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
    """A fresh run was asked for where checkpoints of a run already lie."""


class DriftError(UsageError):
    """A resumed run's configuration differs in what decides its numbers; names each key."""


class CheckpointError(SpeedtronicError):
    """Something about stored checkpoints."""


class CorruptError(CheckpointError):
    """The bytes of a file are not the bytes that were saved."""


class NoValidCheckpointError(CheckpointError):
    """Checkpoint files exist and none of them verifies; the message names each with its reason."""


class LegacyStoreError(CheckpointError):
    """Payloads of the older format, without any manifest."""


class UnsupportedFormatError(CheckpointError):
    """A checkpoint that a newer version of this program wrote; it is whole, and left alone."""


class RestoreError(CheckpointError):
    """A verified checkpoint does not fit the model, optimizer, data or machine at hand."""


class StorageError(CheckpointError, OSError):
    """Storage refused an operation; what was committed before is still whole."""


class StorageFullError(StorageError):
    """No space is left; what was committed before is still whole.

    Attributes:
        needed_bytes: what the operation needed; None where only the disk knows.
        free_bytes: what was found.
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
        on_request: whether it was told to end, by SIGTERM, and did so in good order.
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
        retryable: whether another attempt may fare better; False when a person has to mend it.
    """

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
