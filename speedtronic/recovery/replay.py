"""Drill `replay`: train the last interval again and compare it with the newest checkpoint."""

from collections.abc import Iterator, Mapping
from typing import Any

from speedtronic.checkpoint import layout, open_storage
from speedtronic.checkpoint.loading import load_step
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.drift import check_drift
from speedtronic.errors import WorkerError
from speedtronic.plan import Chunk
from speedtronic.recovery.compare import difference
from speedtronic.recovery.examination import Examination, as_check
from speedtronic.recovery.findings import Finding
from speedtronic.recovery.judging import VerifiedCheckpoint
from speedtronic.recovery.scratch_run import (
    drill_worker,
    no_checkpoint,
    no_configuration,
    scratch_run,
)
from speedtronic.runtime.environment import environment_changes
from speedtronic.worker.load import LoadProcess
from speedtronic.worker.messages import Facts


@as_check("replay")
def replay(examination: Examination) -> Iterator[Finding]:
    """Train from the checkpoint before the newest; check that the state is equal, to the bit."""
    selected, before = examination.selected, examination.snapshot.previous
    if selected is None:
        yield no_checkpoint(examination, "replay")
        return
    path = examination.path(layout.payload_name(selected.step))
    expected = f"{selected.manifest.state_digest} at step {selected.step}"
    if before is None:
        action = "run the drill again after the next checkpoint"
        found = "one checkpoint, where a replay needs two"
        yield Finding("replay", "warning", path, found, "two checkpoints", action)
        return
    with scratch_run(examination, before) as config, examination.loading() as loader:
        if config is None:
            yield no_configuration(examination, "replay")
            return
        start = loader.load(config.checkpoint_dir, before.step)
        if start.facts is None:
            found = f"step {before.step} does not load: {start.reason}"
            action = f"speedtronic inspect {examination.run_dir} shows which do"
            yield Finding("replay", "failed", path, found, expected, action)
            return
        drifted = _drifted(start.facts.config, config)
        meant = _meant(start.facts, selected.facts)
        allowed = [*drifted, "data.fingerprint"]
        try:
            with drill_worker(config, allow_changes=allowed) as worker:
                worker.train(Chunk(before.step, selected.step), None)
        except WorkerError as error:
            action = "a resume from there would end in the same way: see to the cause"
            yield Finding("replay", "failed", path, str(error), expected, action)
            return
        changed = [line for key, line in drifted.items() if key not in meant]
        yield _comparison(loader, config, selected, changed, path, expected)


def _comparison(
    loader: LoadProcess,
    config: SpeedtronicConfig,
    selected: VerifiedCheckpoint,
    changed: list[str],
    path: str,
    expected: str,
) -> Finding:
    """Compare the replayed checkpoint with the stored one; name causes if they differ."""
    end = loader.load(config.checkpoint_dir, selected.step)
    if end.manifest is None or end.facts is None:
        found = f"the replayed step {selected.step} does not load: {end.reason}"
        return Finding("replay", "failed", path, found, expected, "run the drill again")
    stored, current = selected.facts.data_fingerprint, end.facts.data_fingerprint
    if stored != current:
        changed.append(f"data.fingerprint: the run has {stored}, found {current}")
    around = environment_changes(selected.manifest.environment, end.manifest.environment)
    same = end.facts.state_digest == selected.manifest.state_digest
    if same and not changed:
        return Finding("replay", "ok", path, f"{end.facts.state_digest}: the same", expected)
    if same:
        found = "the same state"
    else:
        theirs = selected.candidate.load()
        ours = load_step(open_storage(config.checkpoint_dir), selected.step)
        found = str(difference(ours.state, theirs))
    causes = [*changed, *around, *_inexact(end.manifest.environment)]
    found += f"; causes: {'; '.join(causes) or 'none known'}"
    action = "set back what has changed; until then a resume is not exact"
    return Finding("replay", "failed", path, found, expected, action)


def _drifted(stored: Mapping[str, Any], config: SpeedtronicConfig) -> dict[str, str]:
    """Find the keys that differ between a checkpoint and a configuration, with both values."""
    changes = check_drift(stored, config, fingerprints=(None, ""), allowed=_Everything())
    return {change.key: str(change) for change in changes}


class _Everything(frozenset[str]):
    def __contains__(self, key: object) -> bool:
        return True


def _meant(before: Facts, after: Facts) -> set[str]:
    """Find the keys that were changed on purpose between two checkpoints of a run."""
    entries = after.history[len(before.history) :]
    return {str(entry["changed"]) for entry in entries if "changed" in entry}


def _inexact(environment: Mapping[str, Any]) -> list[str]:
    causes = []
    if environment.get("compile"):
        causes.append("compile is true: compiled code may round otherwise each time")
    if environment.get("device") not in (None, "cpu") and not environment.get("deterministic"):
        device = environment["device"]
        causes.append(f"{device}: some kernels add in an order that varies, see docs/resume.md")
    return causes
