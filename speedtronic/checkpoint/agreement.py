"""Compares the facts that a checkpoint states in several places, such as its step. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from speedtronic.checkpoint.records import Manifest

SHOWN_UPDATES = 3


def disagreements(manifest: Manifest, state: Mapping[str, Any]) -> list[str]:
    """List each counter on which payload, manifest, schedule, optimizer and data disagree.

    Args:
        manifest: of the checkpoint.
        state: of its payload, whose facts have been validated.

    Returns:
        One line for each disagreement.
    """
    return [*_counters(manifest, state), *_updates(state)]


def _counters(manifest: Manifest, state: Mapping[str, Any]) -> Iterator[str]:
    step, samples = state["step"], state["samples"]
    for name in ("run_id", "step", "samples", "tokens", "skipped_updates", "loss"):
        stored, said = state[name], getattr(manifest, name)
        if stored != said:
            yield f"{name}: {stored} in the payload, {said} in the manifest"
    updates, position = state["scheduler"]["last_epoch"], state["data"]["samples"]
    if updates != step:
        yield f"the schedule is at step {updates}, the payload at {step}"
    if position != samples:
        yield f"the data are at sample {position}, the payload at {samples}"
    expected = expected_samples(state)
    if expected is not None and samples != expected:
        yield f"samples: {samples}, expected (step + skipped updates) x batch = {expected}"
    validated_at = state.get("validated_at")
    if validated_at is not None and validated_at > step:
        yield f"validated at step {validated_at}, the payload is at {step}"


def _updates(state: Mapping[str, Any]) -> Iterator[str]:
    """Check the optimizer's update counts: none exceeds the step.

    A parameter that had no gradient in some updates has a smaller count.
    """
    step, made = state["step"], sorted({float(x) for x in _steps(state["optimizer"])})
    if made and (made[-1] > step or (len(made) == 1 and made[0] != step)):
        shown = ", ".join(f"{x:g}" for x in made[-SHOWN_UPDATES:])
        yield f"the optimizer has made {shown} updates, the payload is at step {step}"


def _steps(value: Any) -> Iterator[float]:
    """Yield every `step` in an optimizer's state: the updates made of one parameter."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "step" and isinstance(item, int | float | torch.Tensor):
                yield float(item)
            else:
                yield from _steps(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _steps(item)


def expected_samples(state: Mapping[str, Any]) -> int | None:
    """Return the sample count that the step implies; None if the batch varied or is unknown."""
    section = state["config"].get("data")
    batch = section.get("target_batch_size") if isinstance(section, Mapping) else None
    other = any(
        "taken_up_from" in entry or str(entry.get("changed")) == "data.target_batch_size"
        for entry in state.get("history", [])
    )
    if other or type(batch) is not int:
        return None
    return int((state["step"] + state["skipped_updates"]) * batch)
