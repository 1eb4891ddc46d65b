"""Make a temporary run directory with a copy of one checkpoint, for a drill to train in."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from speedtronic.checkpoint import open_storage
from speedtronic.checkpoint.candidates import Candidate
from speedtronic.config import SpeedtronicConfig
from speedtronic.recovery.drill_trust import named_code
from speedtronic.recovery.examination import Examination
from speedtronic.recovery.findings import Finding
from speedtronic.redaction import redacted_keys
from speedtronic.storage.base import publish
from speedtronic.worker.chunk import ChunkWorker

NEVER = 10**9  # steps

logger = logging.getLogger(__name__)


@contextmanager
def scratch_run(examination: Examination, start: Candidate) -> Iterator[SpeedtronicConfig | None]:
    """Make a run directory with a copy of one checkpoint; yield None where no drill may train.

    Raises:
        StorageError: the checkpoint no longer exists.
    """
    config = examination.config
    if config is None or examination.distrusted:
        yield None
        return
    if named := named_code(config):
        logger.warning(
            "a drill of %s runs what its configuration names: %s",
            examination.run_dir,
            ", ".join(named),
        )
    with tempfile.TemporaryDirectory(prefix="speedtronic-drill-") as directory:
        config = config.override(
            {
                "run.output_dir": directory,
                "checkpoint.directory": "checkpoints",
                "checkpoint.enabled": True,
                "checkpoint.every_steps": NEVER,
                "checkpoint.save_on_stop": True,
                "checkpoint.keep_best": None,
                "checkpoint.keep_last": None,
                "chunk.steps": NEVER,
                "chunk.standby": False,  # a drill has one start
                # Neither validation nor logging is part of the state.
                "validation.every_steps": None,
                "validation.text_path": None,
                "validation.dataset": None,
                "validation.dataset_args": None,
                "logging.file": None,
                "logging.json_file": "metrics.jsonl",
                "logging.every_steps": 1,
                "logging.hooks": [],
            }
        )
        if blanked := [*redacted_keys(config.to_dict())]:
            examination.config_problem = (
                f"{', '.join(blanked)} blanked (***): stored configurations keep no secrets"
            )
            yield None
            return
        there = open_storage(config.checkpoint_dir)
        there.make_folder("")
        for name in reversed(start.files):  # the manifest last, as a save has it
            with examination.storage.open(name) as source:
                publish(there, name, lambda file, source=source: shutil.copyfileobj(source, file))  # type: ignore[misc]
        yield config


@contextmanager
def drill_worker(
    config: SpeedtronicConfig, allow_changes: Sequence[str] = ()
) -> Iterator[ChunkWorker]:
    """Start a worker for the block, and kill it if the block raises."""
    with ChunkWorker(config, allow_changes=allow_changes, on_log=log_quietly) as worker:
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise


def no_checkpoint(examination: Examination, drill: str) -> Finding:
    """Report that no checkpoint is good: a failure, unless the run has only just begun."""
    if examination.snapshot.is_empty or not examination.settled:
        found = "no checkpoint yet" if examination.settled else "none held still"
        return Finding(drill, "warning", examination.path(), found, "a checkpoint")
    found, action = "nothing to start from", "see the findings before this one"
    return Finding(drill, "failed", examination.path(), found, "a good checkpoint", action)


def no_configuration(examination: Examination, drill: str) -> Finding:
    """Report that the configuration is not known in full, or not trusted with running code."""
    if examination.distrusted:
        path, action = str(examination.directory), "take it over, or give --config FILE"
        expected = "a run that nobody else can write, since a drill runs what its config.yaml names"
        return Finding(drill, "failed", path, examination.distrusted, expected, action)
    found = examination.config_problem or "no config.yaml"
    path = str(examination.directory / "config.yaml")
    action = "give --config FILE; a secret written ${NAME} comes from the environment each time"
    return Finding(drill, "failed", path, found, "the run's configuration", action)


def log_quietly(level: int, name: str, message: str) -> None:
    """Log a worker's message at debug level; it matters only if the drill fails."""
    logger.debug("%s: %s", name, message)
