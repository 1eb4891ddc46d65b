"""Whether what a checkpoint says of itself in several places agrees. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from speedtronic.checkpoint import Manifest
from speedtronic.recovery.loading import Facts


def disagreements(manifest: Manifest, facts: Facts) -> list[str]:
    """Each counter of the payload that is not what manifest, schedule, optimizer and data say."""
    return list(_missing(facts) or [*_counters(manifest, facts), *_numbers(facts)])


def _missing(facts: Facts) -> list[str]:
    return [f"the payload has no {key!r}" for key in facts.missing]


def _counters(manifest: Manifest, facts: Facts) -> Iterator[str]:
    for name in ("samples", "tokens", "skipped_updates"):
        stored, said = getattr(facts, name), getattr(manifest, name)
        if stored != said:
            yield f"{name}: {stored} in the payload, {said} in the manifest"
    if facts.scheduler_step != facts.step:
        yield f"the schedule is at step {facts.scheduler_step}, the payload at {facts.step}"
    yield from _optimizer(facts)
    if facts.data.get("samples") != facts.samples:
        yield f"the data are at sample {facts.data.get('samples')}, the payload at {facts.samples}"
    expected = expected_samples(facts)
    if expected is not None and facts.samples != expected:
        yield f"samples: {facts.samples}, expected (step + skipped updates) x batch = {expected}"
    if facts.state_digest != manifest.state_digest:
        yield f"{facts.state_digest} was loaded, the manifest has {manifest.state_digest}"


def _optimizer(facts: Facts) -> Iterator[str]:
    """Parameters that got no gradient in some updates have fewer; none has more."""
    made = facts.optimizer_steps
    if made and (made[-1] > facts.step or (len(made) == 1 and made[0] != facts.step)):
        shown = ", ".join(f"{x:g}" for x in made[-3:])
        yield f"the optimizer has made {shown} updates, the payload is at step {facts.step}"


def _numbers(facts: Facts) -> Iterator[str]:
    if facts.not_finite:
        yield f"NaN or infinity in {', '.join(facts.not_finite)}"


def expected_samples(facts: Facts) -> int | None:
    """What the step implies; None for a run whose batch was not always the same, or not known."""
    batch = _section(facts.config, "data").get("target_batch_size")
    other = any(
        "taken_up_from" in entry or str(entry.get("changed")) == "data.target_batch_size"
        for entry in facts.history
    )
    if other or not all(isinstance(x, int) for x in (batch, facts.step, facts.skipped_updates)):
        return None
    return int((facts.step + facts.skipped_updates) * batch)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
