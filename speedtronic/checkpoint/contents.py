"""Validates the facts in a payload, which are everything in it but tensors, by type and range.

A digest proves that a file holds the bytes that were written, not that a program without a defect
wrote them. So every fact in a payload is validated before any of it is used or called good. Keys
that were added later may be missing; unknown keys are ignored.
"""

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from speedtronic.checkpoint.fact_types import (
    Bytes,
    Facts,
    FiniteFloat,
    JsonMapping,
    Number,
    describe_first_error,
    describe_value,
    is_count,
    require_json,
    require_torch_state,
    require_words,
    validate_nested,
)
from speedtronic.checkpoint.records import FORMAT_VERSION, Count, RunId, Step
from speedtronic.errors import CorruptError, UnsupportedFormatError

PYTHON_WORDS, NUMPY_WORDS = 625, 624  # in the state of each generator


def validate_facts(state: Mapping[str, Any]) -> None:
    """Refuse a payload with a fact whose type or range no run can resume from.

    Raises:
        CorruptError: names the first wrong fact, with what was found.
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
        raise CorruptError(f"payload is damaged: {describe_first_error(error)}") from None


class _Python(Facts):
    version: Literal[3]
    words: Annotated[Any, AfterValidator(lambda words: require_words(words, PYTHON_WORDS))]
    gauss: FiniteFloat | None

    @model_validator(mode="after")
    def _fits(self) -> "_Python":
        # The last word is the position among the others.
        random.Random().setstate((self.version, tuple(self.words.tolist()), self.gauss))
        return self


class _NumPy(Facts):
    name: Literal["MT19937"]
    words: Annotated[Any, AfterValidator(lambda words: require_words(words, NUMPY_WORDS))]
    position: Annotated[int, Field(ge=0, le=NUMPY_WORDS)]
    has_gauss: Annotated[int, Field(ge=0, le=1)]
    gauss: FiniteFloat


class _Random(Facts):
    python: _Python
    numpy: _NumPy
    torch: Annotated[Any, AfterValidator(require_torch_state)]
    cuda: list[Bytes] | None = None
    mps: Bytes | None = None


class _Scheduler(Facts):
    last_epoch: Count
    max_steps: Count
    base_lrs: list[FiniteFloat]


class _Scaler(Facts):
    scale: Annotated[FiniteFloat, Field(ge=0)]
    growth_factor: FiniteFloat
    backoff_factor: FiniteFloat
    growth_interval: Count
    growth_tracker: Annotated[int, Field(ge=0, alias="_growth_tracker")]


class _Group(Facts):
    params: list[Count]


class _Inherited(Facts):
    frozen: list[str]


class _Optimizer(Facts):
    inherited: _Inherited | None = None
    state: dict[Count, dict[str, Any]]
    param_groups: list[_Group]

    @model_validator(mode="after")
    def _agrees(self) -> "_Optimizer":
        known = [number for group in self.param_groups for number in group.params]
        if len(set(known)) != len(known) or not set(self.state) <= set(known):
            raise ValueError("its groups do not list each parameter once")
        for number, moments in self.state.items():
            if "step" in moments and not is_count(moments["step"]):
                raise ValueError(f"state.{number}.step is {describe_value(moments['step'])}")
        return self


class _Optimizers(Facts):
    inherited: _Inherited | None = None
    parts: list[_Optimizer]


class _Data(Facts):
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
    """Validate the state of one optimizer, or of several used as one."""
    if not isinstance(value, dict):
        raise ValueError("expected a dict")
    validate_nested(_Optimizers if "parts" in value else _Optimizer, value)
    return value


def _scaler(value: Any) -> Any:
    """Validate the state of a gradient scaler; None or empty if the precision needs none."""
    if value is not None and not isinstance(value, dict):
        raise ValueError("expected a dict or None")
    if value:
        validate_nested(_Scaler, value)
    return value


def _known_modules(modes: dict[str, bool]) -> dict[str, bool]:
    """Refuse a list of modules that lacks the parent of one of them."""
    for name in modes:
        if name and name.rpartition(".")[0] not in modes:
            raise ValueError(f"module {name!r} lies in none that is known")
    if "" not in modes:
        raise ValueError("the model itself is not among them")
    return modes


class _Attributes(Facts):
    set: dict[str, Any]
    gone: list[str]


class _ModuleState(Facts):
    attributes: dict[str, _Attributes] = Field(default_factory=dict)
    generators: dict[str, Any] = Field(default_factory=dict)
    buffers: dict[str, Any] = Field(default_factory=dict)
    replaced: dict[str, str] = Field(default_factory=dict)
    requires_grad: dict[str, bool] = Field(default_factory=dict)


class _Payload(Facts):
    format_version: Annotated[int, Field(ge=1)]
    model: dict[str, Any]
    not_finite: list[str] = Field(default_factory=list)
    modes: Annotated[dict[str, bool], AfterValidator(_known_modules)]
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
    config: JsonMapping
    precision: dict[str, Any] | None = None
    data_fingerprint: str | None = None
    environment: JsonMapping = Field(default_factory=dict)
    history: Annotated[list[dict[str, Any]], AfterValidator(require_json)] = Field(
        default_factory=list
    )
    run_id: RunId
