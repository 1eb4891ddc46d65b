"""Check that a directory is the one that the run was last trained in, and complete."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.quarantine import quarantined
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.drift import check_drift
from speedtronic.errors import CorruptError, DriftError
from speedtronic.recovery.examination import Examination, as_check
from speedtronic.recovery.findings import Finding, Status
from speedtronic.run_directory import RUN_JSON, displacement, place_problem, read_place
from speedtronic.storage.names import LOCK, is_temporary
from speedtronic.storage.regular_files import read_json


@as_check("directory")
def directory(examination: Examination) -> Iterator[Finding]:
    """Check that the directory is the one that the run was last trained in, and complete."""
    found = list(_directory(examination))
    yield from found
    if not found:
        run_id = examination.snapshot.run_id
        yield Finding("directory", "ok", examination.run_dir, f"run {run_id}", "the same")


def _directory(examination: Examination) -> Iterator[Finding]:
    run_dir = examination.run_dir
    if examination.obstacle:
        yield Finding(
            "directory",
            "failed",
            run_dir,
            examination.obstacle,
            "a run's output directory",
            "name another directory, or make this one readable",
        )
        return
    snapshot = examination.snapshot
    if by := examination.trained_by:
        found = f"being trained by {by}; what is half done is not judged"
        yield Finding("directory", "warning", run_dir, found, "nobody trains it")
    if snapshot.is_empty:
        found = "no checkpoint yet; a resume would start at step 0"
        yield Finding("directory", "warning", examination.path(), found, "a checkpoint")
    yield from _moved(examination)
    yield from _configuration(examination)
    yield from _reported(examination)
    yield from _temporaries(examination)


def _moved(examination: Examination) -> Iterator[Finding]:
    path, action = str(examination.directory / RUN_JSON), "resume one of the two only"
    if problem := place_problem(examination.directory):
        remedy = "resume, which writes it anew"
        yield Finding("directory", "warning", path, problem, "a run's record", remedy)
    if difference := displacement(examination.directory):
        expected = "the directory that the run was last trained in"
        yield Finding("directory", "warning", path, difference, expected, action)
    recorded, run_id = read_place(examination.directory).get("run_id"), examination.snapshot.run_id
    if recorded and run_id and recorded != run_id:
        found, expected = f"checkpoints of run {run_id}", f"of run {recorded}"
        yield Finding("directory", "warning", path, found, expected, "see whose run this is")


def _configuration(examination: Examination) -> Iterator[Finding]:
    path, selected = str(examination.directory / "config.yaml"), examination.selected
    if examination.config is None or examination.config_problem:
        found = examination.config_problem or "missing"
        action = "resume with --config, which writes it anew"
        status: Status = "warning"
        if not examination.located and examination.snapshot.is_empty and _was_run(examination):
            status, found = "failed", f"{found}; so it is not known where the checkpoints are"
            action = "give --config FILE, a copy of the run's configuration"
        yield Finding("directory", status, path, found, "the run's configuration", action)
    elif selected and selected.facts.config:
        if selected.manifest.config_fingerprint == examination.config.fingerprint():
            return
        # Keys may have come with a newer version; only a difference in one of them counts.
        if difference := _drift(selected.facts.config, examination.config):
            expected = f"the configuration of step {selected.step}"
            action = "resume with the run's configuration, or allow the change on purpose"
            yield Finding("directory", "warning", path, difference, expected, action)


def _was_run(examination: Examination) -> bool:
    """Whether a run was trained or at least started here."""
    there = set(os.listdir(examination.directory))  # noqa: PTH208
    return not there <= {LOCK, "checkpoints"}


def _drift(stored: Mapping[str, Any], config: SpeedtronicConfig) -> str:
    try:
        check_drift(stored, config, fingerprints=(None, ""), allowed=())
    except DriftError as error:
        return "; ".join(line.strip() for line in str(error).splitlines()[1:-1])
    return ""


def _reported(examination: Examination) -> Iterator[Finding]:
    """Report checkpoints that the last report lists and that are gone.

    Not if a later one exists: then retention may have deleted them.
    """
    path = examination.directory / "report.json"
    try:
        listed = read_json(path)["checkpoints"]
        files = {int(entry["step"]): str(entry["file"]) for entry in listed}
    except FileNotFoundError:
        return
    except (OSError, CorruptError, ValueError, LookupError, TypeError, OverflowError) as error:
        said = str(error) if isinstance(error, CorruptError | OSError) else "damaged"
        action = "nothing: the next flow run writes it anew"
        yield Finding("directory", "warning", str(path), said, "a report", action)
        return
    there = set(layout.steps_newest_first(examination.snapshot.names))
    if examination.trained_by or max(there, default=0) > max(files, default=0):
        return
    aside = {found.file.rpartition("/")[2] for found in quarantined(examination.storage)}
    missing = sorted(s for s, file in files.items() if s not in there and file not in aside)
    if missing:
        found = f"checkpoints missing: {', '.join(files[step] for step in missing)}"
        action = "restore them from a copy, or go on without"
        yield Finding("directory", "warning", str(path), found, "all it lists", action)


def _temporaries(examination: Examination) -> Iterator[Finding]:
    junk = sorted(name for name in examination.snapshot.names if is_temporary(name))
    if not junk or examination.trained_by:
        return
    found = f"{len(junk)} temporary files of a writer that died: {', '.join(junk[:3])}"
    path, expected = examination.path(), "none"
    with examination.repairing() as allowed:
        if not allowed:
            action = examination.remedy()
            yield Finding("directory", "warning", path, found, expected, action)
            return
        for name in junk:
            examination.storage.delete(name)
    yield Finding("directory", "repaired", path, found, "none: deleted")
