"""The composition root: from a configuration to objects that train, and from there to a result."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from speedtronic.checkpoint import CheckpointStore, Pointer, RunLock, open_storage
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.storage import local_path
from speedtronic.config import SpeedtronicConfig
from speedtronic.data import SampleLoader, build_loader
from speedtronic.errors import ConfigError, OutputDirError, RunExistsError
from speedtronic.model import build_model
from speedtronic.training.metrics import Hook, JsonLines
from speedtronic.training.optim import Schedule, build_optimizer
from speedtronic.training.precision import Precision, resolve_device, resolve_precision
from speedtronic.training.rng import seed_all
from speedtronic.training.state import TrainState
from speedtronic.training.trainer import Trainer, TrainResult

logger = logging.getLogger(__name__)


class Runtime:
    """One run in this process, holding its lock; a context manager. `build_runtime` makes it.

    Attributes:
        config: with the schedule's horizon filled in.
        state: model, optimizer and everything else that is trained.
        trainer: advances `state`.
        store: the checkpoints; None when the run neither saves nor resumes.
        pointer: the newest checkpoint committed or restored; None before the first.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        *,
        state: TrainState,
        precision: Precision,
        loader: SampleLoader,
        store: CheckpointStore | None,
        lock: RunLock | None,
        pointer: Pointer | None,
        hooks: Sequence[Hook],
        on_step: Callable[[int], None] | None,
    ) -> None:
        self.config = config
        self.state = state
        self.store = store
        self.pointer = pointer
        self._loader = loader
        self._lock = lock
        self._precision = precision
        self._hooks = list(hooks)
        self._metrics = _open_metrics(config, state.step)
        self.trainer = Trainer(
            state,
            precision=precision,
            accumulation=config.data.target_batch_size // config.data.micro_batch_size,
            grad_clip=config.optimizer.grad_clip,
            save=self._save if config.checkpoint.enabled else None,
            save_every=config.checkpoint.every_steps,
            save_on_stop=config.checkpoint.save_on_stop,
            log_every=config.logging.every_steps,
            hooks=[*([self._metrics] if self._metrics else []), *self._hooks],
            on_step=on_step,
        )
        # What every checkpoint carries besides the state.
        self._about = {
            "config": config.to_dict(redact_secrets=True),
            "precision": {"mode": precision.mode},
        }

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
        """End loader workers, close files, release the lock."""
        self._loader.close()
        if self._metrics:
            self._metrics.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _save(self, state: dict[str, Any]) -> None:
        assert self.store is not None
        if self._metrics:
            self._metrics.flush()
        self.pointer = self.store.save({**state, **self._about})
        for hook in self._hooks:
            hook.on_event("checkpoint_saved", self.pointer.model_dump())


def build_runtime(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    resume: bool = False,
    device: str | None = None,
    schedule_max_steps: int | None = None,
    hooks: Sequence[Hook] = (),
    on_step: Callable[[int], None] | None = None,
) -> Runtime:
    """Build everything that `config` describes, at step 0 or at the newest good checkpoint.

    Args:
        config: a configuration, or a mapping as `SpeedtronicConfig.from_dict` takes.
        resume: go on from the newest good checkpoint if there is any; also `checkpoint.resume`.
        device: instead of `run.device`.
        schedule_max_steps: moves the schedule's horizon, on a resumed run too.
        hooks: told of events, besides the metrics file.
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
    resume = resume or config.checkpoint.resume
    torch_device = resolve_device(config.run.device)
    precision = resolve_precision(config.precision.mode, torch_device)
    storage = open_storage(config.checkpoint_dir)
    store = CheckpointStore(storage, keep_last=config.checkpoint.keep_last)
    if not resume and store.has_checkpoints():
        raise RunExistsError(
            f"{storage.root} holds the checkpoints of a run; give --resume to go on with it, or "
            "another run.output_dir for a new one"
        )
    loader = build_loader(config, pin_memory=torch_device.type == "cuda")
    state = _build_state(config, torch_device, precision, loader)
    _make_output_dir(config)
    lock = _lock(storage.root) if resume or config.checkpoint.enabled else None
    try:
        checkpoint = store.select() if resume else None
        if checkpoint is not None:
            state.load_state_dict(checkpoint.state)
            logger.info("resuming run %s at step %d", checkpoint.manifest.run_id, state.step)
        elif resume:
            logger.info("no checkpoint in %s yet: starting at step 0", storage.root)
        config = _settle_horizon(config, state.schedule, schedule_max_steps, checkpoint is not None)
        store.config_fingerprint = config.fingerprint()
        _write_config(config)
        return Runtime(
            config,
            state=state,
            precision=precision,
            loader=loader,
            store=store if lock else None,
            lock=lock,
            pointer=checkpoint.manifest.pointer() if checkpoint else None,
            hooks=hooks,
            on_step=on_step,
        )
    except BaseException:
        loader.close()
        if lock:
            lock.release()
        raise


def train_from_config(
    config: SpeedtronicConfig | Mapping[str, Any],
    *,
    resume: bool = False,
    device: str | None = None,
    max_steps: int | None = None,
    schedule_max_steps: int | None = None,
    hooks: Sequence[Hook] = (),
    on_step: Callable[[int], None] | None = None,
) -> TrainResult:
    """Train to `max_steps`, or `run.max_steps`, saving on the way; see `build_runtime`.

    SIGTERM and Ctrl-C let the update at hand end and, with `checkpoint.save_on_stop`, save; then
    they do what they always do. A second one does it at once.

    Returns:
        The result; `steps` is the absolute final step, also when the target was reached before.
    """
    with build_runtime(
        config,
        resume=resume,
        device=device,
        schedule_max_steps=schedule_max_steps,
        hooks=hooks,
        on_step=on_step,
    ) as runtime:
        target = runtime.config.run.max_steps if max_steps is None else max_steps
        with stopping_on_signals(runtime.trainer.request_stop):
            return runtime.trainer.fit(target)


@contextmanager
def stopping_on_signals(request_stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `request_stop()`, and raise it when the block ends.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    former: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()
        request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        former[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])


def _build_state(
    config: SpeedtronicConfig, device: torch.device, precision: Precision, loader: SampleLoader
) -> TrainState:
    seed_all(config.run.seed)
    model = build_model(config.model).to(device).train()
    optimizer = build_optimizer(model, config)
    schedule = Schedule(
        optimizer,
        name=config.scheduler.name,
        warmup_steps=config.scheduler.warmup_steps,
        max_steps=config.scheduler.max_steps or config.run.max_steps,
        min_lr_ratio=config.scheduler.min_lr_ratio,
    )
    return TrainState(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scaler=precision.grad_scaler(),
        batches=loader,
        device=device,
    )


def _settle_horizon(
    config: SpeedtronicConfig, schedule: Schedule, moved_to: int | None, resumed: bool
) -> SpeedtronicConfig:
    """The schedule ends where it ended when the run began, unless it is moved on purpose."""
    configured = config.scheduler.max_steps
    if moved_to is not None:
        if resumed and schedule.max_steps != moved_to:
            logger.warning(
                "the schedule's horizon moves from step %d to %d; the run is no longer the one "
                "that was begun",
                schedule.max_steps,
                moved_to,
            )
        schedule.move_horizon(moved_to)
    elif configured is not None and configured != schedule.max_steps:
        raise ConfigError(
            f"scheduler.max_steps is {configured}, but this run's schedule ends at step "
            f"{schedule.max_steps}; set it to that or to null, or move it with --max-steps"
        )
    return config.override({"scheduler.max_steps": schedule.max_steps})


def _make_output_dir(config: SpeedtronicConfig) -> None:
    for url in (config.run.output_dir, config.checkpoint_dir):
        path = local_path(url)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputDirError(f"cannot make the directory {path}: {error.strerror}") from error


def _lock(root: str) -> RunLock:
    lock = RunLock(root)
    lock.acquire()
    return lock


def _write_config(config: SpeedtronicConfig) -> None:
    path = local_path(config.run.output_dir) / "config.yaml"
    text = config.to_yaml(redact_secrets=True)
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputDirError(f"cannot write {path}: {error.strerror}") from error


def _open_metrics(config: SpeedtronicConfig, step: int) -> JsonLines | None:
    path = logging_path(config, config.logging.json_file)
    if path is None:
        return None
    metrics = JsonLines(path)
    metrics.rewind(step)
    return metrics


def logging_path(config: SpeedtronicConfig, name: str | None) -> Path | None:
    """Where a file of the `logging` section lies: a relative one under `run.output_dir`."""
    return None if name is None else local_path(config.under_output_dir(name))
