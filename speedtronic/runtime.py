"""The composition root: from a configuration to objects that train, and from there to a result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from speedtronic.begin import Beginning, Start, begin
from speedtronic.checkpoint import CheckpointStore, Pointer, RunLock, open_storage
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.storage import local_path
from speedtronic.config import SpeedtronicConfig
from speedtronic.drift import refuse_unallowable
from speedtronic.errors import RunExistsError
from speedtronic.hooks import build_hooks
from speedtronic.output import check_writable, logging_path, make_folders, write_config
from speedtronic.parts import Parts, build_parts
from speedtronic.signals import stopping_on_signals
from speedtronic.training.finite import refuse_non_finite
from speedtronic.training.metrics import Hook, JsonLines
from speedtronic.training.trainer import Trainer, TrainResult


class Runtime:
    """One run in this process, holding its lock; a context manager. `build_runtime` makes it.

    Attributes:
        config: with the schedule's horizon filled in.
        state: model, optimizer and everything else that is trained.
        trainer: advances `state`; use `train`, which also tells the hooks.
        store: the checkpoints; None when the run neither saves nor resumes.
        pointer: the newest checkpoint committed or restored; None before the first.
        notes: what differs from when the run was begun or last saved, for people.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        parts: Parts,
        *,
        store: CheckpointStore | None,
        lock: RunLock | None,
        beginning: Beginning,
        hooks: Sequence[Hook],
        on_step: Callable[[int], None] | None,
    ) -> None:
        self.config = config
        self.state = parts.state
        self.store = store
        self.pointer = beginning.pointer
        self.notes = beginning.notes
        self._loader = parts.loader
        self._lock = lock
        self._hooks = list(hooks)
        self._started = False
        self._metrics = _open_metrics(config, self.state.step)
        # What every checkpoint carries besides the state.
        self._about = {
            "config": config.to_dict(redact_secrets=True),
            "precision": {"mode": parts.precision.mode},
            "data_fingerprint": parts.data_fingerprint,
            "environment": parts.environment,
            "history": beginning.history,
        }
        self.trainer = Trainer(
            self.state,
            precision=parts.precision,
            accumulation=config.data.target_batch_size // config.data.micro_batch_size,
            grad_clip=config.optimizer.grad_clip,
            save=self._save if config.checkpoint.enabled else None,
            save_every=config.checkpoint.every_steps,
            save_on_stop=config.checkpoint.save_on_stop,
            validation=parts.validation,
            compiled=config.compile,
            log_every=config.logging.every_steps,
            hooks=[*([self._metrics] if self._metrics else []), *self._hooks],
            on_step=on_step,
        )
        if beginning.forked and config.checkpoint.enabled:
            self._save(self.state.state_dict())  # from here on it stands on its own

    def train(self, target: int) -> TrainResult:
        """Train until the step is `max(step, target)`; see `Trainer.fit`."""
        if not self._started:
            self._started = True
            run_id = self.pointer.run_id if self.pointer else None
            shown = self.config.to_dict(redact_secrets=True)
            self._tell("run_started", step=self.state.step, run_id=run_id, config=shown)
        return self.trainer.fit(target)

    def proves(self, pointer: Pointer | None) -> bool:
        """Whether the live state is, to the bit, the one that `pointer` names and disk confirms."""
        if pointer is None:
            return self.pointer is None and self.state.step == 0
        return (
            self.state.step == pointer.step
            and self.store is not None
            and self.store.confirms(pointer)
            and state_digest(self.state.state_dict()) == pointer.state_digest
        )

    def close(self) -> None:
        """Tell the hooks that it is over, end loader workers, close files, release the lock."""
        if self._started:
            self._tell("run_ended", step=self.state.step)
        self._loader.close()
        if self._metrics:
            self._metrics.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _save(self, state: dict[str, Any]) -> None:
        assert self.store is not None
        refuse_non_finite(state["model"], step=state["step"], loss=state["loss"])
        if self._metrics:
            self._metrics.flush()
        self.pointer = self.store.save({**state, **self._about})
        self._tell("checkpoint_saved", **self.pointer.model_dump())

    def _tell(self, event: str, **payload: Any) -> None:
        for hook in self._hooks:
            hook.on_event(event, payload)


def build_runtime(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    resume: bool = False,
    device: str | None = None,
    schedule_max_steps: int | None = None,
    allow_changes: Sequence[str] = (),
    init_from: str | None = None,
    fork_from: tuple[str, int] | None = None,
    trust_legacy: bool = False,
    hooks: Sequence[Hook] = (),
    on_step: Callable[[int], None] | None = None,
) -> Runtime:
    """Build everything that `config` describes, and put it where the run begins.

    Args:
        config: a configuration, or a mapping as `SpeedtronicConfig.from_dict` takes.
        resume: go on from the newest good checkpoint if there is any; also `checkpoint.resume`.
        device: instead of `run.device`.
        schedule_max_steps: moves the schedule's horizon, on a resumed run too.
        allow_changes: keys, such as `optimizer.lr`, that may differ from the run's checkpoint.
        init_from: a `.pt` of ours or a `.safetensors` file whose weights a fresh run takes.
        fork_from: another run's directory of checkpoints, and the step a fresh run starts at.
        trust_legacy: with `resume`, take up a run of Speedtronic 2.0; see docs/migration.md.
        hooks: told of events, besides the metrics file and those of `logging.hooks`.
        on_step: called with the step after each update; must be quick.

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
    start = Start(
        resume=resume or config.checkpoint.resume,
        init_from=init_from,
        fork_from=fork_from,
        allow_changes=allow_changes,
        schedule_max_steps=schedule_max_steps,
        trust_legacy=trust_legacy,
    )
    refuse_unallowable(allow_changes, config)
    with_store = start.resume or config.checkpoint.enabled
    check_writable(config, checkpoints=with_store)
    store = _open_store(config, start)
    all_hooks = [*hooks, *build_hooks(config, local_path(config.run.output_dir))]
    parts = build_parts(config)
    make_folders(config, checkpoints=with_store)
    lock = _lock(store.root) if with_store else None
    try:
        beginning = begin(
            parts.state,
            store,
            config,
            start,
            data_fingerprint=parts.data_fingerprint,
            environment=parts.environment,
        )
        config = config.override({"scheduler.max_steps": parts.state.schedule.max_steps})
        store.config_fingerprint = config.fingerprint()
        write_config(config)
        return Runtime(
            config,
            parts,
            store=store if lock else None,
            lock=lock,
            beginning=beginning,
            hooks=all_hooks,
            on_step=on_step,
        )
    except BaseException:
        if lock:
            lock.release()
        raise


def train_from_config(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    max_steps: int | None = None,
    **options: Any,
) -> TrainResult:
    """Train to `max_steps`, or `run.max_steps`, saving on the way.

    SIGTERM and Ctrl-C let the update at hand end and, with `checkpoint.save_on_stop`, save; then
    they do what they always do. A second one does it at once.

    Args:
        config: a configuration, or a mapping as `SpeedtronicConfig.from_dict` takes.
        max_steps: absolute target; leaves the schedule alone.
        options: as `build_runtime` takes them, such as `resume=True`.

    Returns:
        The result; `steps` is the absolute final step, also when the target was reached before.

    Raises:
        SpeedtronicError: as `build_runtime` and `Trainer.fit`.
    """
    with build_runtime(config, **options) as runtime:
        target = runtime.config.run.max_steps if max_steps is None else max_steps
        with stopping_on_signals(runtime.trainer.request_stop):
            return runtime.train(target)


def _open_store(config: SpeedtronicConfig, start: Start) -> CheckpointStore:
    store = CheckpointStore(
        open_storage(config.checkpoint_dir),
        keep_last=config.checkpoint.keep_last,
        keep_best=config.checkpoint.keep_best,
    )
    if not start.resume and store.has_checkpoints():
        raise RunExistsError(
            f"{store.root} holds the checkpoints of a run; give --resume to go on with it, or "
            "another run.output_dir for a new one"
        )
    return store


def _lock(root: str) -> RunLock:
    lock = RunLock(root)
    lock.acquire()
    return lock


def _open_metrics(config: SpeedtronicConfig, step: int) -> JsonLines | None:
    path = logging_path(config, config.logging.json_file)
    if path is None:
        return None
    metrics = JsonLines(path)
    metrics.rewind(step)
    return metrics
