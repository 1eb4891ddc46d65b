"""Types of the facts in a payload, and the checks that pydantic does not have."""

from typing import Annotated, Any

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

MAX_SHOWN = 60  # characters of a wrong value in a message
MAX_DEPTH = 50  # of nested values in a manifest
MAX_INT = 2**64


def describe_first_error(error: ValidationError) -> str:
    """Describe in one line the first wrong fact: its key, what was expected and what was found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] == "missing" else f", found {describe_value(first['input'])}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}{found}" if where else f"{said}{found}"


def describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__}"
    if type(value) is int and abs(value) > MAX_INT:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:MAX_SHOWN]


def require_json(value: Any, depth: int = 0) -> Any:
    """Return a value that the JSON of a manifest can hold; refuse any other."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        for item in value.values():
            require_json(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            require_json(item, depth + 1)
    elif isinstance(value, str):
        value.encode()  # raises a ValueError where it is no text
    elif not isinstance(value, int | float | None) or (type(value) is int and abs(value) > MAX_INT):
        raise ValueError(f"holds {describe_value(value)}")
    return value


def require_number(value: Any) -> Any:
    """Return an int or float; refuse anything else, such as a tensor of one number."""
    if type(value) not in (int, float):
        raise ValueError("expected a number")
    return value


def require_words(words: Any, count: int) -> torch.Tensor:
    if not isinstance(words, torch.Tensor) or words.dtype != torch.int64:
        raise ValueError("expected a tensor of int64")
    if list(words.shape) != [count]:
        raise ValueError(f"expected {count} words")
    if int(words.min()) < 0 or int(words.max()) >= 2**32:
        raise ValueError("expected words of 32 bits")
    return words


def require_bytes(words: Any) -> torch.Tensor:
    if not isinstance(words, torch.Tensor) or words.dtype != torch.uint8 or words.dim() != 1:
        raise ValueError("expected a tensor of bytes")
    if not words.numel():
        raise ValueError("expected bytes, it is empty")
    return words


def require_torch_state(words: Any) -> torch.Tensor:
    state = require_bytes(words)
    try:
        torch.Generator().set_state(state.clone())
    except RuntimeError as error:
        raise ValueError(f"no state of torch's generator: {str(error).splitlines()[0]}") from None
    return state


class Facts(BaseModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")


Number = Annotated[float, BeforeValidator(require_number)]
FiniteFloat = Annotated[Number, Field(allow_inf_nan=False)]
JsonMapping = Annotated[dict[str, Any], AfterValidator(require_json)]
Bytes = Annotated[Any, AfterValidator(require_bytes)]


def is_count(value: Any) -> bool:
    """Whether a value is a whole number >= 0, or a tensor with one such number."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.dtype == torch.bool or value.is_complex():
            return False
        value = value.item()
    return type(value) in (int, float) and value >= 0 and value == value // 1


def validate_nested(kind: type[Facts], value: dict[Any, Any]) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(describe_first_error(error)) from None
