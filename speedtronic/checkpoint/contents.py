"""What the facts in a payload may be, each by type and range: all but its tensors.

A digest proves that a file holds the bytes that were written, not that a program without a defect
wrote them. So nothing of a payload is taken up, nor called good, before all of it was held against
this list. A key that came later may be missing; one that is not known is left alone.
"""

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from speedtronic.checkpoint.records import FORMAT_VERSION, Count, RunId, Step
from speedtronic.errors import CorruptError, UnsupportedFormatError

MAX_SHOWN = 60  # characters of a wrong value
MAX_DEPTH = 50  # of what goes into a manifest
MAX_INT = 2**64

PYTHON_WORDS, NUMPY_WORDS = 625, 624


def validate_facts(state: Mapping[str, Any]) -> None:
    """Return if every fact in a payload has the type and the range that a run can go on with.

    Raises:
        CorruptError: names the first that has not, with what was found.
        UnsupportedFormatError: a newer version of this program wrote it.
    """
    version = state.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"payload has format version {version}; this program reads up to {FORMAT_VERSION}: "
            "update speedtronic-flows"
        )
    try:
        _Payload.model_validate(dict(state))
    except ValidationError as error:
        raise CorruptError(f"payload is damaged: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """The first fact that is wrong, where it stands and what was found, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] == "missing" else f", found {_show(first['input'])}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}{found}" if where else f"{said}{found}"


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__}"
    if type(value) is int and abs(value) > MAX_INT:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:MAX_SHOWN]


def _plain(value: Any, depth: int = 0) -> Any:
    """What the JSON of a manifest can hold."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        for item in value.values():
            _plain(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _plain(item, depth + 1)
    elif isinstance(value, str):
        value.encode()  # raises a ValueError where it is no text
    elif not isinstance(value, int | float | None) or (type(value) is int and abs(value) > MAX_INT):
        raise ValueError(f"holds {_show(value)}")
    return value


def _is_number(value: Any) -> Any:
    """A tensor of one number would pass for one."""
    if type(value) not in (int, float):
        raise ValueError("expected a number")
    return value


def _is_words(words: Any, count: int) -> torch.Tensor:
    if not isinstance(words, torch.Tensor) or words.dtype != torch.int64:
        raise ValueError("expected a tensor of int64")
    if list(words.shape) != [count]:
        raise ValueError(f"expected {count} words")
    if int(words.min()) < 0 or int(words.max()) >= 2**32:
        raise ValueError("expected words of 32 bits")
    return words


def _is_bytes(words: Any) -> torch.Tensor:
    if not isinstance(words, torch.Tensor) or words.dtype != torch.uint8 or words.dim() != 1:
        raise ValueError("expected a tensor of bytes")
    if not words.numel():
        raise ValueError("expected bytes, it is empty")
    return words


def _is_torch_state(words: Any) -> torch.Tensor:
    state = _is_bytes(words)
    try:
        torch.Generator().set_state(state.clone())
    except RuntimeError as error:
        raise ValueError(f"no state of torch's generator: {str(error).splitlines()[0]}") from None
    return state


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")


Number = Annotated[float, BeforeValidator(_is_number)]
FiniteFloat = Annotated[Number, Field(allow_inf_nan=False)]
Plain = Annotated[dict[str, Any], AfterValidator(_plain)]
Bytes = Annotated[Any, AfterValidator(_is_bytes)]


class _Python(_Facts):
    version: Literal[3]
    words: Annotated[Any, AfterValidator(lambda words: _is_words(words, PYTHON_WORDS))]
    gauss: FiniteFloat | None

    @model_validator(mode="after")
    def _fits(self) -> "_Python":
        # The last word is the position among the others.
        random.Random().setstate((self.version, tuple(self.words.tolist()), self.gauss))
        return self


class _NumPy(_Facts):
    name: Literal["MT19937"]
    words: Annotated[Any, AfterValidator(lambda words: _is_words(words, NUMPY_WORDS))]
    position: Annotated[int, Field(ge=0, le=NUMPY_WORDS)]
    has_gauss: Annotated[int, Field(ge=0, le=1)]
    gauss: FiniteFloat


class _Random(_Facts):
    python: _Python
    numpy: _NumPy
    torch: Annotated[Any, AfterValidator(_is_torch_state)]
    cuda: list[Bytes] | None = None
    mps: Bytes | None = None


class _Scheduler(_Facts):
    last_epoch: Count
    max_steps: Count
    base_lrs: list[FiniteFloat]


class _Scaler(_Facts):
    scale: Annotated[FiniteFloat, Field(ge=0)]
    growth_factor: FiniteFloat
    backoff_factor: FiniteFloat
    growth_interval: Count
    growth_tracker: Annotated[int, Field(ge=0, alias="_growth_tracker")]


class _Group(_Facts):
    params: list[Count]


class _Inherited(_Facts):
    frozen: list[str]


class _Optimizer(_Facts):
    inherited: _Inherited | None = None
    state: dict[Count, dict[str, Any]]
    param_groups: list[_Group]

    @model_validator(mode="after")
    def _agrees(self) -> "_Optimizer":
        known = [number for group in self.param_groups for number in group.params]
        if len(set(known)) != len(known) or not set(self.state) <= set(known):
            raise ValueError("its groups do not list each parameter once")
        for number, moments in self.state.items():
            if "step" in moments and not _is_count(moments["step"]):
                raise ValueError(f"state.{number}.step is {_show(moments['step'])}")
        return self


class _Optimizers(_Facts):
    inherited: _Inherited | None = None
    parts: list[_Optimizer]


class _Data(_Facts):
    samples: Count
    seed: int | None = None
    epoch: Count | None = None
    shuffle: bool | None = None
    num_samples: Count | None = None
    epoch_samples: Annotated[int, Field(ge=1)] | None = None
    index: Annotated[int, Field(ge=0)] | None = None
    begun: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "_Data":
        if "index" not in self.model_fields_set:
            return self
        if self.index is None or None in (self.seed, self.epoch, self.begun):
            raise ValueError("a place in a stream has index, epoch, begun and seed")
        if self.index > self.samples or (self.begun or 0) > self.samples:
            raise ValueError("a place in a stream lies behind its sample")
        return self


def _optimizer(value: Any) -> Any:
    """That of one optimizer, or of several used as one."""
    if not isinstance(value, dict):
        raise ValueError("expected a dict")
    _judge(_Optimizers if "parts" in value else _Optimizer, value)
    return value


def _scaler(value: Any) -> Any:
    """None or empty where the precision needs none."""
    if value is not None and not isinstance(value, dict):
        raise ValueError("expected a dict or None")
    if value:
        _judge(_Scaler, value)
    return value


def _judge(kind: type[_Facts], value: dict[Any, Any]) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first(error)) from None


def _modes(modes: dict[str, bool]) -> dict[str, bool]:
    """Every module lies in one that is listed too."""
    for name in modes:
        if name and name.rpartition(".")[0] not in modes:
            raise ValueError(f"module {name!r} lies in none that is known")
    if "" not in modes:
        raise ValueError("the model itself is not among them")
    return modes


def _is_count(value: Any) -> bool:
    """A whole number >= 0, alone or as the only one of a tensor."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.dtype == torch.bool or value.is_complex():
            return False
        value = value.item()
    return type(value) in (int, float) and value >= 0 and value == value // 1


class _Attributes(_Facts):
    set: dict[str, Any]
    gone: list[str]


class _ModuleState(_Facts):
    attributes: dict[str, _Attributes] = Field(default_factory=dict)
    generators: dict[str, Any] = Field(default_factory=dict)
    buffers: dict[str, Any] = Field(default_factory=dict)
    replaced: dict[str, str] = Field(default_factory=dict)
    requires_grad: dict[str, bool] = Field(default_factory=dict)


class _Payload(_Facts):
    format_version: Annotated[int, Field(ge=1)]
    model: dict[str, Any]
    not_finite: list[str] = Field(default_factory=list)
    modes: Annotated[dict[str, bool], AfterValidator(_modes)]
    module_state: _ModuleState = Field(default_factory=_ModuleState)
    optimizer: Annotated[Any, AfterValidator(_optimizer)]
    scheduler: _Scheduler
    scaler: Annotated[Any, AfterValidator(_scaler)]
    step: Step
    samples: Count
    tokens: Count
    skipped_updates: Count
    loss: FiniteFloat | None
    val_loss: Number | None = None
    validated_at: Step | None = None
    data: _Data
    rng: _Random
    coordinator: None = None
    config: Plain
    precision: dict[str, Any] | None = None
    data_fingerprint: str | None = None
    environment: Plain = Field(default_factory=dict)
    history: Annotated[list[dict[str, Any]], AfterValidator(_plain)] = Field(default_factory=list)
    run_id: RunId
