"""Trains a run in chunks: each is a task, retried until its checkpoint is committed.

prefect deployment run speedtronic/train
prefect deployment run speedtronic/train --param config=run.yaml --param max_steps=500
"""

import logging
import time
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from speedtronic.checkpoint import Pointer
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.config import split_target
from speedtronic.errors import ConfigError, WorkerError
from speedtronic.flows.artifacts import RunView
from speedtronic.flows.attempts import Attempts
from speedtronic.flows.events import RunEvents
from speedtronic.flows.restarts import has_history, recover_run, take_over, this_flow_run
from speedtronic.flows.server_absence import ending_in_time
from speedtronic.plan import Chunk, plan_chunks, unsaved_steps
from speedtronic.report import ChunkReport, RunReport
from speedtronic.storage.urls import local_path
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.messages import Done


@flow(name="speedtronic")
def train(
    config: str | dict[str, Any],
    output_dir: str | None = None,
    max_steps: int | None = None,
    overrides: dict[str, Any] | None = None,
    allow_changes: list[str] | None = None,
) -> RunReport:
    """Train a run to its target, going on from the newest good checkpoint if there is one.

    Args:
        config: path of a YAML or JSON file, or its content.
        output_dir: instead of `run.output_dir`.
        max_steps: absolute target step instead of `run.max_steps`; leaves the schedule alone,
            unless it is beyond the horizon of a fresh run for which none is configured.
        overrides: single keys to change, such as `{"optimizer.lr": 1e-4}`.
        allow_changes: keys, such as `optimizer.lr`, that may differ from the run's checkpoint.
    """
    settings, target = configure(config, output_dir, max_steps, overrides)
    take_over(settings)
    events = RunEvents(settings.run.output_dir, settings.checkpoint_dir)
    with ending_in_time(), RunView(settings) as view:
        attempts = Attempts(settings, events, view)
        if has_history(settings):
            recover_run(settings)
            events.look_for_quarantined()
        with ChunkWorker(
            settings,
            allow_changes=allow_changes or [],
            target=target,
            on_log=_log_in_run,
            on_event=attempts.on_event,
        ) as worker:
            pointer = attempts.of(restore, "restore", worker, saves=0)(worker)
            report = _begin_report(settings, pointer, target, worker.restores)
            view.begin(report)
            for chunk in _plan(settings, report):
                _train_to(chunk, report, settings, attempts, worker)
                view.chunk_ended()
    get_run_logger().info(
        "done: step %d, chunks: %d, attempts: %d",
        report.trained_to,
        len(report.chunks),
        report.attempts,
    )
    return report


@task(cache_policy=NO_CACHE, persist_result=False)
def restore(worker: ChunkWorker) -> Pointer | None:
    """Find the newest good checkpoint, mending the store on the way."""
    return worker.restore()


@task(cache_policy=NO_CACHE, persist_result=False)
def train_chunk(
    worker: ChunkWorker, chunk: Chunk, pointer: Pointer | None, entry: ChunkReport
) -> Done:
    """One attempt at a chunk. What it reached is in the store, whatever becomes of the attempt."""
    entry.attempts += 1
    started = time.monotonic()
    try:
        result = worker.train(chunk, pointer)
    except WorkerError as error:
        entry.failures.append(str(error))
        raise
    finally:
        entry.elapsed_s += time.monotonic() - started
    entry.trained_to, entry.loss = result.trained_to, result.loss
    entry.save_stall_s = result.save_stall_s
    return result


def configure(
    config: str | dict[str, Any],
    output_dir: str | None,
    max_steps: int | None,
    overrides: dict[str, Any] | None,
) -> tuple[SpeedtronicConfig, int]:
    """Build the configuration and the target from a flow run's parameters.

    Returns:
        The configuration, and the target step.

    Raises:
        UsageError: it cannot be used.
    """
    load = SpeedtronicConfig.load if isinstance(config, str) else SpeedtronicConfig.from_dict
    changes = dict(overrides or {})
    if output_dir is not None:
        changes["run.output_dir"] = output_dir
    if max_steps is not None:
        changes["run.max_steps"] = max_steps
    settings, target = split_target(load(config), changes)  # type: ignore[arg-type]
    if not settings.checkpoint.enabled:
        raise ConfigError(
            "checkpoint.enabled is false; chunks hand over by checkpoint, so the flow needs true "
            "(`speedtronic train` trains without)"
        )
    return settings, settings.run.max_steps if target is None else target


def _begin_report(
    settings: SpeedtronicConfig, pointer: Pointer | None, target: int, restores: list[int]
) -> RunReport:
    start = pointer.step if pointer else 0
    flow_run = this_flow_run()
    report = RunReport(
        flow_run=str(flow_run.id) if flow_run else None,
        name=settings.run.name,
        output_dir=settings.run.output_dir,
        start_step=start,
        target_step=max(start, target),
        trained_to=start,
        pointer=pointer,
        samples=pointer.samples if pointer else 0,
        tokens=pointer.tokens if pointer else 0,
        restores=restores,  # the worker's own list, which grows with every load
    )
    report.take_up(local_path(settings.run.output_dir))
    return report


def _plan(settings: SpeedtronicConfig, report: RunReport) -> list[Chunk]:
    start, target = report.start_step, report.target_step
    chunks = plan_chunks(start=start, target=target, chunk_steps=settings.chunk.steps)
    get_run_logger().info(
        "%s: from step %d to %d, chunks: %d", report.name, start, target, len(chunks)
    )
    _warn_of_unsaved(settings, start, target)
    return chunks


def _train_to(
    chunk: Chunk,
    report: RunReport,
    settings: SpeedtronicConfig,
    attempts: Attempts,
    worker: ChunkWorker,
) -> None:
    """Train one chunk, from the pointer that the one before handed on."""
    entry = ChunkReport(chunk.start, chunk.target)
    report.chunks.append(entry)
    every = settings.checkpoint.every_steps
    saves = chunk.target // every - chunk.start // every
    task_of_chunk = attempts.of(train_chunk, chunk.name, worker, saves=saves)
    result = task_of_chunk(worker, chunk, report.pointer, entry)
    report.pointer, report.trained_to = result.pointer, result.trained_to
    report.samples, report.tokens = result.samples, result.tokens
    report.loss, report.val_loss = result.loss, result.val_loss
    report.notes += [note for note in result.notes if note not in report.notes]


def _warn_of_unsaved(settings: SpeedtronicConfig, start: int, target: int) -> None:
    unsaved = unsaved_steps(
        start=start,
        target=target,
        every_steps=settings.checkpoint.every_steps,
        save_on_stop=settings.checkpoint.save_on_stop,
    )
    if unsaved:
        get_run_logger().warning(
            "steps %d to %d will be trained but not saved: they are past the last multiple of "
            "checkpoint.every_steps (%d); checkpoint.save_on_stop saves the last one",
            unsaved[0],
            unsaved[-1],
            settings.checkpoint.every_steps,
        )


def _log_in_run(level: int, name: str, message: str) -> None:
    """Log a line of the worker in the task run that waits for it."""
    get_run_logger().log(max(level, logging.INFO), message)
