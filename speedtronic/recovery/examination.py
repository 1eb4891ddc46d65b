"""Hold what the checks of one run share: its directory, configuration and judged checkpoints."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps

from speedtronic.checkpoint import layout, open_lock, open_storage
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import (
    CheckpointError,
    ConfigError,
    RunLockedError,
    StorageError,
    UsageError,
)
from speedtronic.plan import first_saves
from speedtronic.recovery.drill_trust import reason_for_distrust
from speedtronic.recovery.findings import Finding, Status
from speedtronic.recovery.judging import CheckpointJudge, StoreSnapshot, VerifiedCheckpoint
from speedtronic.run_directory import CONFIG_YAML, RUN_JSON, locate, read_place
from speedtronic.storage.base import Storage
from speedtronic.storage.local import LocalStorage
from speedtronic.storage.lock_owner import lock_owner
from speedtronic.storage.names import LOCK
from speedtronic.storage.urls import local_path
from speedtronic.worker.load import LoadProcess


class Examination:
    """One run under examination; made by `examine`.

    Attributes:
        run_dir: its output directory, as given.
        directory: the same as an absolute path.
        repair: whether checks may repair what they find.
        storage: the directory of its checkpoints.
        config: the given configuration, else the run's own, with `run.output_dir` set to `run_dir`;
            None if there is none.
        config_problem: what is wrong with its own config.yaml; empty if nothing is.
        located: False where neither config.yaml nor run.json tells where the checkpoints are.
        target: step at which the run is complete; None if that is not known.
        obstacle: why nothing can be examined at all; empty otherwise.
        settled: False if files changed during the inspection; a missing file then proves nothing.
    """

    def __init__(
        self,
        run_dir: str,
        *,
        repair: bool,
        config: SpeedtronicConfig | None,
        target: int | None,
        loader: LoadProcess | None,
    ) -> None:
        self.run_dir = run_dir
        self.directory = local_path(run_dir)
        self.repair = repair
        self.config = config
        self._config_is_given = config is not None
        self.config_problem = ""
        self.located = True
        self.obstacle = ""
        self._loader = loader
        self.settled = True
        self.storage: Storage
        try:
            if not self.directory.is_dir():
                raise UsageError(f"{run_dir} is not a directory")
            located = locate(self.directory, config)
            self.config_problem, self.located = located.problem, located.known
            self.storage = open_storage(located.checkpoints)
            if (used := config or located.config) is not None:
                self.config = used.override({"run.output_dir": run_dir})
            if not self._is_run():
                self.obstacle = "it holds no run: neither config.yaml nor checkpoints"
        except ConfigError:
            raise
        except OSError as error:  # StorageError is one
            self.storage = LocalStorage(self.directory)
            self.obstacle = f"it cannot be read: {error.strerror or error}"
        configured = self.config.run.max_steps if self.config else None
        self.target = configured if target is None else target

    def path(self, name: str = "") -> str:
        """Return the path of a checkpoint file, or of the checkpoint directory, for messages."""
        return f"{self.storage.root}/{name}" if name else self.storage.root

    @cached_property
    def snapshot(self) -> StoreSnapshot:
        """The checkpoints, judged once for all checks.

        Raises:
            StorageError: their directory cannot be read.
        """
        recorded = read_place(self.directory).get("run_id")
        trained_here = None if recorded is None else str(recorded)
        with self.loading() as loader:
            judge = CheckpointJudge(self.storage, loader, trained_here, self._first_saves())
            snapshot, self.settled = judge.take_snapshot()
            return snapshot

    def _first_saves(self) -> Collection[int]:
        """The steps at which the run's first save can be; none without its configuration."""
        if self.config is None:
            return ()
        section = self.config.checkpoint
        return first_saves(every_steps=section.every_steps, save_on_stop=section.save_on_stop)

    @contextmanager
    def loading(self) -> Iterator[LoadProcess]:
        """Lend the process that loads: the one given, else one that ends with the block."""
        if self._loader is not None:
            yield self._loader
            return
        with LoadProcess() as loader:
            yield loader

    @property
    def selected(self) -> VerifiedCheckpoint | None:
        """The checkpoint that a resume would start from; None also where nothing can be read."""
        try:
            return None if self.obstacle else self.snapshot.selected
        except StorageError:
            return None

    @cached_property
    def distrusted(self) -> str:
        """Why a drill must not run what the run's own configuration names; empty if it may."""
        return "" if self._config_is_given else reason_for_distrust(self.directory)

    @property
    def trained_by(self) -> str:
        """Name the process that trains the run now, as far as can be seen; empty if none does."""
        return lock_owner(self.storage) or ("" if self.settled else "a process not seen from here")

    @contextmanager
    def repairing(self) -> Iterator[bool]:
        """Take the run's lock for the block, without waiting; yield whether repair is allowed.

        It is if it was asked for, the lock was free and no checkpoint came since the judgement.
        """
        held = False
        lock = open_lock(self.storage) if self.repair and not self.trained_by else None
        if lock is not None:
            try:
                lock.acquire()
                held = True
            except RunLockedError:  # training has begun just now
                pass
        try:
            yield held and self._is_as_judged()
        finally:
            if lock is not None and held:
                lock.release()

    def remedy(self) -> str:
        """Return the command that would repair what was found."""
        when = "when it is not being trained: " if self.trained_by else ""
        return f"{when}speedtronic recover {self.run_dir}"

    def _is_run(self) -> bool:
        """Whether a run lies here; one just begun has only a checkpoint folder and a lock."""
        own = (self.directory / name for name in (CONFIG_YAML, RUN_JSON))
        if any(map(os.path.lexists, own)) or (self.directory / "checkpoints").is_dir():
            return True
        names = self.storage.entries()
        return (
            not {layout.POINTER, LOCK}.isdisjoint(names)
            or next(layout.steps_newest_first(names), None) is not None
        )

    def _is_as_judged(self) -> bool:
        newest = max((found.step for found in self.snapshot.judgements), default=-1)
        return next(layout.steps_newest_first(self.storage.entries()), -1) <= newest


def examine(
    run_dir: str,
    *,
    repair: bool = False,
    config: SpeedtronicConfig | None = None,
    target: int | None = None,
    loader: LoadProcess | None = None,
) -> Examination:
    """Prepare the examination of a run. Nothing is loaded yet.

    Args:
        run_dir: its output directory, or that of its checkpoints.
        repair: let the checks repair what they find; without it nothing is written.
        config: instead of its own config.yaml.
        target: step at which the run is complete, instead of `run.max_steps`.
        loader: the process to load with; by default one that ends after the judgement.

    Raises:
        UsageError: there is no such directory.
    """
    return Examination(run_dir, repair=repair, config=config, target=target, loader=loader)


Check = Callable[[Examination], list[Finding]]


def as_check(name: str) -> Callable[[Callable[[Examination], Iterator[Finding]]], Check]:
    """Turn a generator of findings into a check that reports an error of the disk as a finding."""

    def make(findings_of: Callable[[Examination], Iterator[Finding]]) -> Check:
        @wraps(findings_of)
        def check(examination: Examination) -> list[Finding]:
            if examination.obstacle and name != "directory":
                return []
            findings: list[Finding] = []
            try:
                findings.extend(findings_of(examination))
            except (CheckpointError, UsageError, OSError) as error:
                # Under a run that is being trained, files vanish.
                moving = isinstance(error, StorageError) and examination.trained_by
                status: Status = "warning" if moving else "failed"
                said, where = str(error), examination.path()
                findings.append(Finding(name, status, where, said, "readable and writable"))
            return findings

        return check

    return make
