"""Builds all objects of a run from its configuration, and trains it: the composition root."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from speedtronic.checkpoint import (
    CheckpointStore,
    Lease,
    RunLock,
    open_lock,
    open_storage,
)
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.drift import refuse_unallowable
from speedtronic.errors import RunExistsError
from speedtronic.plan import first_saves
from speedtronic.run_directory import checkpoints_elsewhere, logging_path, write_config
from speedtronic.runtime.components import build_components
from speedtronic.runtime.hooks import build_hooks
from speedtronic.runtime.output_files import check_writable, make_folders
from speedtronic.runtime.runtime import Runtime
from speedtronic.runtime.signals import TrainingSignals
from speedtronic.runtime.start import start_run
from speedtronic.runtime.start_options import StartOptions
from speedtronic.storage.regular_files import make_directory
from speedtronic.storage.urls import local_path
from speedtronic.training.metrics import Hook, refuse_foreign_lines
from speedtronic.training.trainer import TrainResult


def build_runtime(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    start: StartOptions | None = None,
    device: str | None = None,
    hooks: Sequence[Hook] = (),
    on_step: Callable[[int], None] | None = None,
    **options: Any,
) -> Runtime:
    """Build everything that `config` describes, and load or initialize its state.

    Args:
        config: a configuration, or a mapping as `SpeedtronicConfig.from_dict` takes.
        start: where the run starts, and what it may differ in.
        device: instead of `run.device`.
        hooks: told of events, besides the metrics file and those of `logging.hooks`.
        on_step: called with the step after each update; must be quick.
        options: fields of `StartOptions`, such as `resume=True`, which go on top of `start`.

    Raises:
        UsageError: config, data, device or directory cannot be used; nothing was written.
        RunExistsError: not resuming, and a run's checkpoints are there.
        RunLockedError: another process trains in this directory.
        CheckpointError: resuming, and there is no good checkpoint, or one that does not fit.
    """
    if not isinstance(config, SpeedtronicConfig):
        config = SpeedtronicConfig.from_dict(config)
    if device is not None:
        config = config.override({"run.device": device})
    start = replace(start or StartOptions(), **options).with_config(config)
    refuse_unallowable(start.allow_changes, config)
    with_store = start.resume or config.checkpoint.enabled
    check_writable(config, checkpoints=with_store)
    if (metrics := logging_path(config, config.logging.json_file)) is not None:
        refuse_foreign_lines(metrics)
    lock = open_lock(open_storage(config.checkpoint_dir)) if with_store else None
    store = _open_store(config, lock, forked_at=start.fork_from[1] if start.fork_from else None)
    _refuse_a_run(store, start)
    _refuse_a_run_elsewhere(store, config)
    all_hooks = [*hooks, *build_hooks(config, local_path(config.run.output_dir))]
    components = build_components(config)
    held = ExitStack()
    held.callback(components.loader.close)
    try:
        _lock_all(config, lock, held)
        _refuse_a_run(store, start)  # another process may have begun and ended one meanwhile
        started = start_run(
            components.state,
            store,
            config,
            start,
            data_fingerprint=components.data_fingerprint,
            environment=components.environment,
        )
        config = config.override({"scheduler.max_steps": components.state.schedule.max_steps})
        store.config_fingerprint = config.fingerprint()
        write_config(config)
        return Runtime(
            config,
            components,
            store=store if lock else None,
            held=held,
            started=started,
            hooks=all_hooks,
            on_step=on_step,
        )
    except BaseException:
        with suppress(Exception):  # what went wrong first is what matters
            held.close()
        raise


def train_from_config(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    max_steps: int | None = None,
    start: StartOptions | None = None,
    **options: Any,
) -> TrainResult:
    """Train to `max_steps`, or `run.max_steps`, saving on the way.

    SIGTERM, SIGHUP and Ctrl-C let the update at hand end and, with `checkpoint.save_on_stop`, save;
    then they do what they always do. One more, a second or more later, does it at once. SIGUSR1
    saves and goes on.

    Args:
        config: a configuration, or a mapping as `SpeedtronicConfig.from_dict` takes.
        max_steps: absolute target; leaves the schedule alone, unless it is beyond the horizon of a
            fresh run for which none is configured.
        start: where the run starts; `max_steps` replaces its `target`.
        options: as `build_runtime` takes them, such as `resume=True`.

    Returns:
        The result; `steps` is the absolute final step, also when the target was reached before.

    Raises:
        SpeedtronicError: as `build_runtime` and `Trainer.fit`.
    """
    start = start or StartOptions()
    target = start.target if max_steps is None else max_steps
    with (
        TrainingSignals() as signals,
        build_runtime(config, start=start, target=target, **options) as runtime,
    ):
        target = runtime.config.run.max_steps if target is None else target
        signals.attach(runtime.trainer)
        return runtime.train(target)


def _open_store(
    config: SpeedtronicConfig, lock: RunLock | Lease | None, *, forked_at: int | None
) -> CheckpointStore:
    section = config.checkpoint
    return CheckpointStore(
        open_storage(config.checkpoint_dir),
        keep_last=section.keep_last,
        keep_best=section.keep_best,
        keep_every=section.keep_every,
        first_saves=(
            range(forked_at, forked_at + 1)  # a fork saves where it begins
            if forked_at is not None
            else first_saves(every_steps=section.every_steps, save_on_stop=section.save_on_stop)
        ),
        fence=lock.confirm if lock else None,
    )


def _lock_all(config: SpeedtronicConfig, lock: RunLock | Lease | None, held: ExitStack) -> None:
    """Make the directories and take their locks, which `held` releases.

    That of the output directory comes first: who is refused has touched nothing of the holder's.
    """
    output_dir = local_path(config.run.output_dir)
    make_directory(output_dir)
    own = RunLock(str(output_dir), warn=False)
    if not (isinstance(lock, RunLock) and lock.is_of(own)):
        own.acquire()
        held.callback(own.release)
    if lock is not None:
        make_folders(config, checkpoints=True)
        lock.acquire()
        held.callback(lock.release)
    else:
        make_folders(config, checkpoints=False)


def _refuse_a_run_elsewhere(store: CheckpointStore, config: SpeedtronicConfig) -> None:
    """Refuse to start at step 0 in the directory of a run that has checkpoints elsewhere."""
    if store.has_checkpoints() or not (elsewhere := checkpoints_elsewhere(config)):
        return
    raise RunExistsError(
        f"{config.run.output_dir} is of a run whose checkpoints are in {elsewhere}, and there are "
        f"none in {store.root}; set checkpoint.directory to {elsewhere} to go on with it, or give "
        "another run.output_dir for a new one"
    )


def _refuse_a_run(store: CheckpointStore, start: StartOptions) -> None:
    if not start.resume and store.has_checkpoints():
        raise RunExistsError(
            f"{store.root} holds the checkpoints of a run; give --resume to go on with it, or "
            "another run.output_dir for a new one"
        )
