"""Prove that a resume would work, before anyone needs it. No drill changes the run.

`load` reports the load that every checklist makes, with its size and time. `replay` trains from the
checkpoint before the newest up to it, on the same data, and compares the states. `resume` trains a
few steps beyond the newest. Both train in a worker, as every run does, in a scratch directory with
a copy of one checkpoint; it is deleted afterwards.
"""

import logging
import math
import statistics
from collections.abc import Iterator, Mapping

from speedtronic.checkpoint import layout
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import WorkerError
from speedtronic.plan import Chunk
from speedtronic.recovery.examination import Check, Examination, as_check
from speedtronic.recovery.findings import Finding
from speedtronic.recovery.replay import replay
from speedtronic.recovery.scratch_run import (
    drill_worker,
    no_checkpoint,
    no_configuration,
    scratch_run,
)
from speedtronic.run_directory import logging_path
from speedtronic.training.metrics import read_events

RESUME_STEPS = 5
RECENT = 50  # number of logged losses that the new ones are compared with

logger = logging.getLogger(__name__)


@as_check("load")
def load(examination: Examination) -> Iterator[Finding]:
    """Report how the selected checkpoint was loaded and verified, and how long that took."""
    selected = examination.selected
    if selected is None:
        yield no_checkpoint(examination, "load")
        return
    size = selected.manifest.payload.size_bytes / 2**20
    found = f"{size:.1f} MiB in {selected.facts.seconds:.2f} s, {selected.facts.state_digest}"
    path = examination.path(layout.payload_name(selected.step))
    yield Finding("load", "ok", path, found, selected.manifest.state_digest)


@as_check("resume")
def resume(examination: Examination) -> Iterator[Finding]:
    """Train a few steps beyond the newest checkpoint; check that the loss is as before.

    As before: it is finite, and its mean is at most four standard deviations, and at least 5 %,
    above the mean of the last 50 losses that the run has logged.
    """
    selected = examination.selected
    if selected is None:
        yield no_checkpoint(examination, "resume")
        return
    path = examination.path(layout.payload_name(selected.step))
    with scratch_run(examination, selected.candidate) as config:
        if config is None:
            yield no_configuration(examination, "resume")
            return
        config = config.override({"checkpoint.save_on_stop": False})
        chunk, expected = Chunk(selected.step, selected.step + RESUME_STEPS), "a finite loss"
        recent = _losses(examination.config, up_to=selected.step)
        if len(recent) > 2:
            mean = statistics.mean(recent)
            limit = mean + max(4 * statistics.stdev(recent), 0.05 * abs(mean))
            expected = f"at most {limit:.4f}, as the last {len(recent)} logged losses imply"
        else:
            limit = math.inf
        try:
            with drill_worker(config) as worker:
                worker.train(chunk, None)
        except WorkerError as error:
            action = "a resume would end in the same way: see to the cause"
            yield Finding("resume", "failed", path, str(error), expected, action)
            return
        loss = statistics.mean(_losses(config, up_to=chunk.target)[-RESUME_STEPS:])
    found = f"loss {loss:.4f} over steps {chunk.start + 1} to {chunk.target}"
    if loss <= limit:
        yield Finding("resume", "ok", path, found, expected)
        return
    action = "look at data and configuration: what has changed since?"
    yield Finding("resume", "failed", path, found, expected, action)


def _losses(config: SpeedtronicConfig | None, *, up_to: int) -> list[float]:
    """Read the newest losses that a run has logged, oldest first."""
    path = config and logging_path(config, config.logging.json_file)
    if not path:
        return []
    try:
        events = read_events(path, "train_step")
    except (OSError, ValueError, KeyError) as error:
        logger.debug("%s: %s", path, error)
        return []
    losses = [e["loss"] for e in events if e["step"] <= up_to and e["loss"] is not None]
    return losses[-RECENT:]


DRILLS: Mapping[str, Check] = {"load": load, "replay": replay, "resume": resume}
