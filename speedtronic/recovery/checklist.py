"""The recovery checklist: seven checks, each a function from an examination to findings.

Without `repair` nothing is written. With it a check repairs what it finds while it holds the run's
lock, which it takes without waiting: while the run is being trained nothing is written either.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.candidates import IRREGULAR_REMEDY
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.retention import pin, pinned, unpin
from speedtronic.recovery.directory_check import directory
from speedtronic.recovery.examination import Check, Examination, as_check
from speedtronic.recovery.findings import Finding
from speedtronic.recovery.judging import ContradictionError, Judgement
from speedtronic.storage.base import FILE, publish_bytes

NOTHING_GOOD = (
    "no checkpoint is good and nothing was moved: restore one from a copy, or train into another "
    "directory"
)
PIN_REASON = "recovery: kept until a checkpoint after step"


@as_check("pointer")
def pointer(examination: Examination) -> Iterator[Finding]:
    """Check that `latest.json` is whole and names the newest good checkpoint."""
    snapshot, selected = examination.snapshot, examination.snapshot.selected
    path, said = examination.path(layout.POINTER), snapshot.pointer.pointer
    if snapshot.is_empty or snapshot.is_blocked or (selected is None and not examination.settled):
        return
    found = snapshot.pointer.problem or ("missing" if said is None else f"names step {said.step}")
    if selected is None:
        expected = "names a good checkpoint"
        yield Finding("pointer", "failed", path, found, expected, NOTHING_GOOD)
        return
    expected = f"names step {selected.step}, the newest good one"
    if said == selected.pointer or examination.trained_by:
        yield Finding("pointer", "ok", path, found, expected)
        return
    if said and said.step == selected.step:
        found = f"says of step {said.step} what its manifest does not"
    with examination.repairing() as allowed:
        if not allowed:
            yield Finding("pointer", "failed", path, found, expected, examination.remedy())
            return
        if snapshot.pointer.problem:
            quarantine(examination.storage, [layout.POINTER], snapshot.pointer.problem)
        publish_bytes(examination.storage, layout.POINTER, selected.pointer.to_bytes())
    yield Finding("pointer", "repaired", path, found, f"{expected}: it does now")


@as_check("payload")
def payload(examination: Examination) -> Iterator[Finding]:
    """Check that the selected payload loads in a child; report each newer one that does not."""
    snapshot = examination.snapshot
    for judgement in snapshot.judgements:
        yield from _payload_findings(examination, judgement)
    if snapshot.lost and examination.settled:
        path, expected = examination.path(), "a checkpoint of this run"
        yield Finding("payload", "failed", path, snapshot.lost, expected, NOTHING_GOOD)


def _payload_findings(examination: Examination, judgement: Judgement) -> Iterator[Finding]:
    path = examination.path(layout.payload_name(judgement.step))
    candidate, status = judgement.candidate, judgement.status
    if status == "uncommitted":
        if not examination.snapshot.lost and not examination.trained_by:
            yield _uncommitted(examination, path)
    elif status == "foreign":
        expected = f"of run {examination.snapshot.run_id}"
        found = f"of run {candidate.manifest.run_id}"
        action = "nothing: it is never resumed, counted or deleted"
        yield Finding("payload", "warning", path, found, expected, action)
    elif status == "irregular":
        found = candidate.describe_irregular()
        yield Finding("payload", "failed", examination.path(), found, FILE, IRREGULAR_REMEDY)
    elif status == "unverified":
        action = "see to the cause and look again; nothing is wrong with the file as such"
        yield Finding("payload", "failed", path, judgement.reason, "it loads", action)
    elif status == "corrupt" and not isinstance(judgement.error, ContradictionError):
        yield _rejected(examination, "payload", judgement, "the bytes that were saved")
    else:
        size = candidate.manifest.payload.size_bytes / 2**20
        yield Finding("payload", "ok", path, f"loaded, {size:.1f} MiB", "its digest")


def _uncommitted(examination: Examination, path: str) -> Finding:
    """Report the payload of an interrupted save, the first one or a later one."""
    action = "nothing: the next save of this step replaces it"
    if examination.snapshot.is_empty:
        action = "nothing: a resume moves it to quarantine and starts at step 0"
    return Finding("payload", "warning", path, "no manifest", "a whole save", action)


@as_check("counters")
def counters(examination: Examination) -> Iterator[Finding]:
    """Check that step and counters agree wherever they are stored, and every number is finite."""
    for judgement in examination.snapshot.judgements:
        if isinstance(judgement.error, ContradictionError):
            yield _rejected(examination, "counters", judgement, "the same everywhere, all finite")
        elif judgement.loaded is not None:
            path = examination.path(layout.payload_name(judgement.step))
            facts = judgement.loaded.facts
            said = f"step {facts.step}, {facts.samples} samples, {facts.tokens} tokens"
            yield Finding("counters", "ok", path, said, "the same everywhere, all finite")


def _rejected(examination: Examination, check: str, judgement: Judgement, expected: str) -> Finding:
    """Quarantine a checkpoint if repair is allowed and another one is good; report it."""
    path, found = examination.path(layout.payload_name(judgement.step)), judgement.reason
    if examination.snapshot.is_blocked:
        return Finding(check, "failed", path, found, expected, "see what stops the load")
    if examination.selected is None:
        return Finding(check, "failed", path, found, expected, NOTHING_GOOD)
    with examination.repairing() as allowed:
        if not allowed:
            return Finding(check, "failed", path, found, expected, examination.remedy())
        quarantine(examination.storage, judgement.candidate.files, found)
    return Finding(check, "repaired", path, found, f"{expected}: moved to quarantine")


@as_check("target")
def target(examination: Examination) -> Iterator[Finding]:
    """Report how many steps are left to train."""
    selected, goal = examination.selected, examination.target
    if selected is None or goal is None:
        return
    left = goal - selected.step
    found = f"step {selected.step}: " + (f"{left} steps to go" if left > 0 else "nothing to do")
    yield Finding("target", "ok", examination.run_dir, found, f"target {goal}")


@as_check("repetition")
def repetition(examination: Examination) -> Iterator[Finding]:
    """Report how many samples a resume would train on again, and how that is known."""
    selected = examination.selected
    if selected is None:
        return
    found = describe_repetition(selected.facts.data)
    path = examination.path(layout.payload_name(selected.step))
    yield Finding("repetition", "ok", path, found, "0 samples trained on twice")


def describe_repetition(data: Mapping[str, Any]) -> str:
    """Say why no sample is trained on twice, given the position in the data of a checkpoint."""
    position = data.get("samples")
    if "shuffle" in data:
        return f"0 samples: the order is a function of the seed, to go on at sample {position}"
    if data.get("own_state"):
        return f"0 samples: the data go on by a state of their own, at sample {position}"
    skipped = int(position or 0) - int(data.get("begun") or 0)
    return f"0 samples if the data repeat themselves: up to {skipped} are read again to skip them"


@as_check("previous")
def previous_checkpoint(examination: Examination) -> Iterator[Finding]:
    """Check that the checkpoint before the selected one is kept until a later one is verified."""
    snapshot, selected = examination.snapshot, examination.snapshot.selected
    if selected is None:
        return
    path, before = examination.path(), snapshot.previous
    wanted = before.step if before and (examination.target or 0) > selected.step else None
    pins = pinned(examination.storage)
    ours = {step for step, reason in pins.items() if reason.startswith(PIN_REASON)}
    done = []
    if wanted not in pins or ours - {wanted}:
        with examination.repairing() as allowed:
            if allowed and wanted is not None and wanted not in pins:
                pin(examination.storage, wanted, f"{PIN_REASON} {selected.step} is verified")
                done.append(f"pinned step {wanted}")
            for step in sorted(ours - {wanted}) if allowed else ():
                unpin(examination.storage, step)
                done.append(f"unpinned step {step}: a later one is verified")
    found = f"step {before.step}" if before else "there is no other"
    if before and before.step in pins:
        found += ", pinned"
    expected = "kept until a later one is verified"
    yield Finding("previous", "ok", path, "; ".join(done) or found, expected)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("directory", directory),
    ("pointer", pointer),
    ("payload", payload),
    ("counters", counters),
    ("target", target),
    ("repetition", repetition),
    ("previous", previous_checkpoint),
)
