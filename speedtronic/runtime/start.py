"""Where a run begins: at its newest checkpoint, another run's, given weights, or at step 0."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from speedtronic.checkpoint import Checkpoint, CheckpointStore, Pointer, open_storage
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.drift import check_drift
from speedtronic.errors import CheckpointError, ConfigError, CorruptError, UsageError
from speedtronic.legacy import payload
from speedtronic.legacy.migrate import take_up
from speedtronic.redaction import scrub
from speedtronic.run_directory import read_place
from speedtronic.runtime.environment import environment_changes
from speedtronic.storage.urls import local_path
from speedtronic.training.state import TrainState
from speedtronic.training.weights import load_weights, refuse_unfit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What the caller wants of the beginning.

    Attributes:
        resume: go on from the newest good checkpoint if there is one.
        init_from: a `.pt` of ours or a `.safetensors` file whose weights a fresh run takes.
        fork_from: another run's directory of checkpoints and the step in it, which a fresh run
            takes whole.
        allow_changes: keys of the trajectory that may differ from the checkpoint's.
        schedule_max_steps: moves the schedule's horizon.
        target: step to which the caller will train; None means `run.max_steps`.
        trust_legacy: with `resume`, take up a run of Speedtronic 2.0.
        reject: with `resume`, a step to set aside first, and why.

    Raises:
        UsageError: two of them contradict each other.
    """

    resume: bool = False
    init_from: str | None = None
    fork_from: tuple[str, int] | None = None
    allow_changes: Sequence[str] = ()
    schedule_max_steps: int | None = None
    target: int | None = None
    trust_legacy: bool = False
    reject: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        if self.init_from is not None and self.fork_from is not None:
            raise UsageError("--init-from and --fork-from both say where a run starts; give one")
        if self.trust_legacy and not self.resume:
            raise UsageError("--trust-legacy is for going on with a run; give --resume with it")


@dataclass
class Beginning:
    """How a run began.

    Attributes:
        pointer: to the checkpoint of this run that was restored; None for a fresh one.
        forked: whether it is at another run's checkpoint, and has none of its own yet.
        history: what was done to the run on purpose, oldest first; recorded in every manifest.
        notes: for people: what differs from before, and whether it matters.
    """

    pointer: Pointer | None = None
    forked: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def record(self, step: int, **facts: Any) -> None:
        """Add an entry to the history."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.history.append({"step": step, **facts, "at": now})

    def note(self, text: str) -> None:
        """Add a note, and log it."""
        text = scrub(text)
        self.notes.append(text)
        logger.warning("%s", text)


def begin(
    state: TrainState,
    store: CheckpointStore,
    config: SpeedtronicConfig,
    start: Start,
    *,
    data_fingerprint: str,
    environment: dict[str, Any],
) -> Beginning:
    """Put `state` where the run begins. The caller holds the lock of `store`.

    Raises:
        UsageError: the configuration or the data are not the run's, or a file is not there.
        CheckpointError: no good checkpoint, or one that does not fit.
    """
    beginning = Beginning()
    if start.resume and start.trust_legacy:
        about = {"data_fingerprint": data_fingerprint, "environment": environment}
        for difference in take_up(state, store, config, about):
            beginning.note(difference)
    if start.resume and start.reject is not None:
        store.reject(*start.reject)
    checkpoint = store.select() if start.resume else None
    if checkpoint is not None:
        beginning.pointer = checkpoint.manifest.pointer()
        logger.info(
            "resuming run %s at step %d", checkpoint.manifest.run_id, checkpoint.manifest.step
        )
    elif start.fork_from is not None:
        directory, step = start.fork_from
        checkpoint = CheckpointStore(open_storage(directory), keep_last=None).load_step(step)
    elif start.init_from is not None:
        load_weights(state.model, read_weights(start.init_from), exact=False)
        beginning.record(0, init_from=Path(start.init_from).name)
        logger.info("starting at step 0 with the weights of %s", start.init_from)
    elif start.resume:
        _tell_of_step_0(store, config, beginning)
    if checkpoint is not None:
        _restore(state, checkpoint, config, start, data_fingerprint, beginning)
        for change in environment_changes(checkpoint.state.get("environment", {}), environment):
            beginning.note(f"environment: {change}; from here on the run may differ in some bits")
        if beginning.pointer is None:
            parent = checkpoint.manifest
            beginning.forked = True
            beginning.record(parent.step, forked_from=parent.run_id)
            logger.info("forked from run %s at step %d", parent.run_id, parent.step)
    _settle_horizon(state, config, start, checkpoint is not None, beginning)
    return beginning


def _tell_of_step_0(
    store: CheckpointStore, config: SpeedtronicConfig, beginning: Beginning
) -> None:
    former = read_place(local_path(config.run.output_dir)).get("run_id")
    if former is None:
        logger.info("no checkpoint in %s yet: starting at step 0", store.root)
        return
    beginning.note(
        f"no checkpoint is in {store.root}, although run {former} has saved some, as run.json "
        "says: starting at step 0. If a disk is not mounted or a folder was moved, stop this, "
        "bring it back, and resume"
    )


def _restore(
    state: TrainState,
    checkpoint: Checkpoint,
    config: SpeedtronicConfig,
    start: Start,
    data_fingerprint: str,
    beginning: Beginning,
) -> None:
    saved = checkpoint.state
    replaced = saved.get("module_state", {}).get("replaced")
    # First, for a shape says more than the key it comes from.
    refuse_unfit(state.model, saved["model"], replaced=replaced)
    changes = check_drift(
        saved["config"],
        config,
        fingerprints=(saved.get("data_fingerprint"), data_fingerprint),
        allowed=start.allow_changes,
    )
    other_data = any(key.startswith(("data.", "run.seed")) for key in start.allow_changes)
    state.load_state_dict(saved, other_data=other_data)
    beginning.history = list(saved.get("history", []))
    for change in changes:
        beginning.record(
            state.step, changed=change.key, stored=change.stored, current=change.current
        )
        beginning.note(f"{change}: allowed, so the run is no longer the one that was begun")


def read_weights(file: str) -> dict[str, torch.Tensor]:
    """The weights in a `.safetensors` file, or in a `.pt` of ours or of Speedtronic 2.0.

    Nothing is executed.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        CheckpointError: it is not what its name says.
    """
    path = local_path(file)
    if path.exists() and not path.is_file():
        raise UsageError(f"--init-from {file}: it is no regular file")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        return payload.read_weights(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--init-from {file}: {error.strerror or error}") from error
    except CorruptError as error:
        raise CheckpointError(f"--init-from {file}: holds no weights: {error}") from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except OSError:
        raise
    except Exception as error:  # the library and torch raise several kinds for damaged files
        raise CorruptError(" ".join(str(error).split()) or type(error).__name__) from error


def _settle_horizon(
    state: TrainState,
    config: SpeedtronicConfig,
    start: Start,
    restored: bool,
    beginning: Beginning,
) -> None:
    """The schedule ends where it ended when the run began, unless it is moved on purpose.

    A fresh run for which no end is configured ends it at its target at the earliest.
    """
    schedule, configured = state.schedule, config.scheduler.max_steps
    target, moved_to = start.target or config.run.max_steps, start.schedule_max_steps
    if moved_to is not None:
        if restored and schedule.max_steps != moved_to:
            beginning.record(
                state.step,
                changed="scheduler.max_steps",
                stored=schedule.max_steps,
                current=moved_to,
            )
            beginning.note(
                f"the schedule's horizon moves from step {schedule.max_steps} to {moved_to}; the "
                "run is no longer the one that was begun"
            )
        schedule.move_horizon(moved_to)
    elif configured is not None and configured != schedule.max_steps:
        raise ConfigError(
            f"scheduler.max_steps is {configured}, but this run's schedule ends at step "
            f"{schedule.max_steps}; set it to that or to null, or move it with --max-steps"
        )
    elif not restored and configured is None and target > schedule.max_steps:
        logger.info(
            "the schedule's horizon is the target, step %d: it is beyond run.max_steps, %d",
            target,
            schedule.max_steps,
        )
        schedule.move_horizon(target)
    elif (
        restored
        and schedule.has_floor
        and target
        > (at_floor := max(schedule.max_steps, config.scheduler.warmup_steps, state.step))
    ):
        first = at_floor + 1
        steps = f"step {first} is" if first == target else f"steps {first} to {target} are"
        beginning.note(
            f"{steps} past the schedule's horizon, {schedule.max_steps}, and will be trained at "
            f"the floor of the learning rate, {schedule.floor:g}; --max-steps {target} moves it"
        )
