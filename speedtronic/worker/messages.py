"""Defines what parent and child processes send each other: one JSON object a line.

The training child reads one `Setup`, then requests (`Restore`, `Train`), and writes events; each
request is answered by `Done` or `Failed`. The loading child answers each `LoadRequest` with
`Loaded`. A field `command` or `event` names the type on the wire. Tensors are never sent.
"""

import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from speedtronic.checkpoint import Manifest, Pointer
from speedtronic.training.trainer import TrainResult


@dataclass(frozen=True)
class Setup:
    """Says what the training child is to train; the first line, sent once.

    Attributes:
        config: the run's configuration, as `SpeedtronicConfig.to_dict` gives it.
        allow_changes: keys that may differ from the run's checkpoint.
        target: step to which all chunks together train; None means `run.max_steps`.
    """

    config: dict[str, Any]
    allow_changes: list[str]
    target: int | None


@dataclass(frozen=True)
class Rejection:
    """Names a checkpoint to quarantine before anything is loaded, and the reason."""

    step: int
    reason: str


@dataclass(frozen=True)
class Restore:
    """Asks the training child to load the newest good checkpoint."""

    reject: Rejection | None = None
    command: Literal["restore"] = "restore"


@dataclass(frozen=True)
class Train:
    """Asks the training child to advance to `target`, from `pointer` if the store confirms it."""

    target: int
    pointer: Pointer | None
    reject: Rejection | None = None
    command: Literal["train"] = "train"


@dataclass(frozen=True)
class LogLine:
    """Carries a log line of the child."""

    level: int
    name: str
    message: str
    event: Literal["log"] = "log"


@dataclass(frozen=True)
class Restored:
    """Reports that the checkpoint of `step` was loaded; 0 is a fresh start."""

    step: int
    event: Literal["restored"] = "restored"


@dataclass(frozen=True)
class StepReached:
    """Reports progress, a few times a second."""

    step: int
    event: Literal["step"] = "step"


@dataclass(frozen=True)
class Saved:
    """Reports that the checkpoint of `step` was committed."""

    step: int
    event: Literal["saved"] = "saved"


@dataclass(frozen=True)
class Alive:
    """Reports what the child is doing, when that has changed; `computing` as in `liveness`."""

    doing: str
    computing: bool
    event: Literal["alive"] = "alive"


@dataclass(frozen=True)
class Failed:
    """Reports the exception that ended the child.

    Attributes:
        kind: name of its class.
        retryable: whether the same attempt could end otherwise.
    """

    kind: str
    message: str
    retryable: bool
    traceback: str
    event: Literal["failed"] = "failed"


@dataclass(frozen=True)
class Done:
    """Answers a request: how far the run is, and what its newest checkpoint is.

    Attributes:
        result: of the training; its `steps` is beyond `pointer.step` when off the save interval.
        pointer: the newest checkpoint; None before the first.
        notes: what differs from when the run was begun or last saved, for people.
    """

    result: TrainResult
    pointer: Pointer | None
    notes: list[str]
    event: Literal["done"] = "done"

    @property
    def trained_to(self) -> int:
        """The step reached."""
        return self.result.steps

    @property
    def samples(self) -> int:
        """Samples consumed since the run began."""
        return self.result.samples

    @property
    def tokens(self) -> int:
        """Label tokens trained on since the run began."""
        return self.result.tokens

    @property
    def loss(self) -> float | None:
        """Mean loss of the last update; None before the first one."""
        return self.result.final_loss

    @property
    def val_loss(self) -> float | None:
        """The newest validation loss; None before the first."""
        return self.result.metrics.get("val_loss")

    @property
    def save_stall_s(self) -> float:
        """Seconds for which saves held training, in all."""
        return self.result.metrics.get("save_stall_s", 0.0)


@dataclass(frozen=True)
class LoadRequest:
    """Asks the loading child for the checkpoint of `step` below `root`.

    Attributes:
        spare_bytes: memory that it may take beyond what its file needs.
    """

    root: str
    step: int
    spare_bytes: int


@dataclass(frozen=True)
class Facts:
    """Describes a payload, in its own words; nothing here has been checked for its type.

    Attributes:
        step, samples, tokens: its counters.
        disagreements: what of it contradicts its manifest, or itself.
        data: position in the data, with `own_state`: whether the data gave a state of their own.
        data_fingerprint: of the data it was trained on.
        config, history: of the run.
        not_finite: the first few tensors of model and optimizer that hold NaN or infinity.
        state_digest: computed anew over what was loaded.
        seconds: that loading and judging took.
    """

    step: int
    samples: int
    tokens: int
    disagreements: list[str]
    data: dict[str, Any]
    data_fingerprint: str | None
    config: dict[str, Any]
    history: list[dict[str, Any]]
    not_finite: list[str]
    state_digest: str
    seconds: float


LoadOutcome = Literal["loaded", "corrupt", "unreadable", "newer", "memory", "died"]


@dataclass(frozen=True)
class Loaded:
    """Reports how a load ended.

    Attributes:
        outcome: `corrupt` says something of the file; `unreadable`, `memory` and `died` of the
            machine, or of both; `newer` that this program is too old for the file.
        reason: empty when it is `loaded`.
        manifest, facts: None unless it is `loaded`.
    """

    outcome: LoadOutcome
    reason: str = ""
    manifest: Manifest | None = None
    facts: Facts | None = field(default=None, repr=False)


Request = Restore | Train
Event = LogLine | Restored | StepReached | Saved | Alive | Failed | Done
Message = Setup | Request | Event | LoadRequest | Loaded

_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="command")])
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def to_line(message: Message) -> str:
    """Encode a message as one line, its end included."""
    return json.dumps(message, default=_plain) + "\n"


def parse_request(line: str | bytes) -> Request:
    """Decode a line for the training child, after the first."""
    return _REQUESTS.validate_python(json.loads(line))


def parse_event(line: str | bytes) -> Event:
    """Decode a line of the training child."""
    return _EVENTS.validate_python(json.loads(line))


def parse_loaded(line: str | bytes) -> Loaded:
    """Decode a line of the loading child. The facts of a damaged payload may have any type."""
    answer = json.loads(line)
    if answer["manifest"] is None:
        return Loaded(**answer)
    manifest = Manifest.model_validate(answer["manifest"])
    return Loaded("loaded", "", manifest, Facts(**answer["facts"]))


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")
