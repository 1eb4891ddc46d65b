"""Puts a run at its first step: resumed, forked, with given weights, or fresh at step 0."""

import logging
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
from speedtronic.legacy.migrate import migrate_run
from speedtronic.redaction import scrub
from speedtronic.run_directory import read_place
from speedtronic.runtime.environment import environment_changes
from speedtronic.runtime.start_options import StartOptions
from speedtronic.storage.urls import local_path
from speedtronic.training.state import TrainState
from speedtronic.training.weights import load_weights, refuse_unfit

logger = logging.getLogger(__name__)


@dataclass
class StartResult:
    """Tells how a run was started.

    Attributes:
        pointer: to the checkpoint of this run that was restored; None for a fresh one.
        forked: whether the state is another run's; this run then has no checkpoint of its own yet.
        history: what was done to the run on purpose, oldest first; recorded in every manifest.
        notes: for people: what differs from before, and whether it matters.
    """

    pointer: Pointer | None = None
    forked: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def record(self, step: int, **facts: Any) -> None:
        """Add an entry to `history`, with the time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.history.append({"step": step, **facts, "at": now})

    def note(self, text: str) -> None:
        """Add a note, and log it."""
        text = scrub(text)
        self.notes.append(text)
        logger.warning("%s", text)


def start_run(
    state: TrainState,
    store: CheckpointStore,
    config: SpeedtronicConfig,
    options: StartOptions,
    *,
    data_fingerprint: str,
    environment: dict[str, Any],
) -> StartResult:
    """Load or initialize `state` as `options` say. The caller holds the lock of `store`.

    Raises:
        UsageError: the configuration or the data are not the run's, or a file is not there.
        CheckpointError: no good checkpoint, or one that does not fit.
    """
    started = StartResult()
    if options.resume and options.trust_legacy:
        about = {"data_fingerprint": data_fingerprint, "environment": environment}
        for difference in migrate_run(state, store, config, about):
            started.note(difference)
    if options.resume and options.reject is not None:
        store.reject(*options.reject)
    checkpoint = store.select() if options.resume else None
    if checkpoint is not None:
        started.pointer = checkpoint.manifest.pointer()
        logger.info(
            "resuming run %s at step %d", checkpoint.manifest.run_id, checkpoint.manifest.step
        )
    elif options.fork_from is not None:
        directory, step = options.fork_from
        checkpoint = CheckpointStore(open_storage(directory), keep_last=None).load_step(step)
    elif options.init_from is not None:
        load_weights(state.model, read_weights(options.init_from), exact=False)
        started.record(0, init_from=Path(options.init_from).name)
        logger.info("starting at step 0 with the weights of %s", options.init_from)
    elif options.resume:
        _note_missing_checkpoints(store, config, started)
    if checkpoint is not None:
        _restore(state, checkpoint, config, options, data_fingerprint, started)
        for change in environment_changes(checkpoint.state.get("environment", {}), environment):
            started.note(f"environment: {change}; from here on the run may differ in some bits")
        if started.pointer is None:
            parent = checkpoint.manifest
            started.forked = True
            started.record(parent.step, forked_from=parent.run_id)
            logger.info("forked from run %s at step %d", parent.run_id, parent.step)
    _settle_horizon(state, config, options, checkpoint is not None, started)
    return started


def _note_missing_checkpoints(
    store: CheckpointStore, config: SpeedtronicConfig, started: StartResult
) -> None:
    former = read_place(local_path(config.run.output_dir)).get("run_id")
    if former is None:
        logger.info("no checkpoint in %s yet: starting at step 0", store.root)
        return
    started.note(
        f"no checkpoint is in {store.root}, although run {former} has saved some, as run.json "
        "says: starting at step 0. If a disk is not mounted or a folder was moved, stop this, "
        "bring it back, and resume"
    )


def _restore(
    state: TrainState,
    checkpoint: Checkpoint,
    config: SpeedtronicConfig,
    options: StartOptions,
    data_fingerprint: str,
    started: StartResult,
) -> None:
    saved = checkpoint.state
    replaced = saved.get("module_state", {}).get("replaced")
    # First, for a shape says more than the key it comes from.
    refuse_unfit(state.model, saved["model"], replaced=replaced)
    changes = check_drift(
        saved["config"],
        config,
        fingerprints=(saved.get("data_fingerprint"), data_fingerprint),
        allowed=options.allow_changes,
    )
    other_data = any(key.startswith(("data.", "run.seed")) for key in options.allow_changes)
    state.load_state_dict(saved, other_data=other_data)
    started.history = list(saved.get("history", []))
    for change in changes:
        started.record(state.step, changed=change.key, stored=change.stored, current=change.current)
        started.note(f"{change}: allowed, so the run is no longer the one that was begun")


def read_weights(file: str) -> dict[str, torch.Tensor]:
    """Read the weights in a `.safetensors` file, or in a `.pt` of ours or of Speedtronic 2.0.

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
    options: StartOptions,
    restored: bool,
    started: StartResult,
) -> None:
    """Set the step at which the schedule ends: the stored one, unless it is moved on purpose.

    A fresh run without a configured end ends its schedule at its target at the earliest.
    """
    schedule, configured = state.schedule, config.scheduler.max_steps
    target, moved_to = options.target or config.run.max_steps, options.schedule_max_steps
    if moved_to is not None:
        if restored and schedule.max_steps != moved_to:
            started.record(
                state.step,
                changed="scheduler.max_steps",
                stored=schedule.max_steps,
                current=moved_to,
            )
            started.note(
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
        started.note(
            f"{steps} past the schedule's horizon, {schedule.max_steps}, and will be trained at "
            f"the floor of the learning rate, {schedule.floor:g}; --max-steps {target} moves it"
        )
