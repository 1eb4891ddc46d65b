"""The recovery checklist: seven checks, each a function from an examination to findings.

Without `repair` nothing is written. With it a check mends what it finds under the run's lock, which
it takes without waiting: while the run is being trained nothing is written either.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.retention import pin, pinned, unpin
from speedtronic.checkpoint.selection import MEND
from speedtronic.recovery.directory_check import directory
from speedtronic.recovery.examination import Check, Examination, as_check
from speedtronic.recovery.findings import Finding
from speedtronic.recovery.judging import Judged
from speedtronic.storage.base import FILE, publish

NOTHING_GOOD = (
    "no checkpoint is good and nothing was moved: restore one from a copy, or train into another "
    "directory"
)
PIN_REASON = "recovery: kept until a checkpoint after step"


@as_check("pointer")
def pointer(examination: Examination) -> Iterator[Finding]:
    """`latest.json` is whole, stays inside, and names the newest good checkpoint."""
    look, selected = examination.look, examination.look.selected
    path, said = examination.path(layout.POINTER), look.pointer.pointer
    if look.is_empty or look.is_stuck or (selected is None and not examination.settled):
        return
    found = look.pointer.problem or ("missing" if said is None else f"names step {said.step}")
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
        if look.pointer.problem:
            quarantine(examination.storage, [layout.POINTER], look.pointer.problem)
        assert selected.pointer is not None
        content = selected.pointer.to_bytes()
        publish(examination.storage, layout.POINTER, lambda file: file.write(content))
    yield Finding("pointer", "repaired", path, found, f"{expected}: it does now")


@as_check("payload")
def payload(examination: Examination) -> Iterator[Finding]:
    """The selected file loads, verified, in a process of its own; what stands before it."""
    for found in examination.look.judged:
        path = examination.path(layout.payload_name(found.step))
        if found.verdict == "uncommitted" and not examination.look.lost:
            if not examination.trained_by:
                yield _uncommitted(examination, path)
        elif found.verdict == "foreign":
            expected = f"of run {examination.look.run_id}"
            action = "nothing: it is never resumed, counted or deleted"
            yield Finding("payload", "warning", path, found.reason, expected, action)
        elif found.verdict == "damaged":
            yield _rejected(examination, "payload", found, "the bytes that were saved")
        elif found.verdict == "irregular":
            yield Finding("payload", "failed", examination.path(), found.reason, FILE, MEND)
        elif found.verdict == "stuck":
            action = "see to the cause and look again; nothing is wrong with the file as such"
            yield Finding("payload", "failed", path, found.reason, "it loads", action)
        elif found.manifest is not None:
            size = found.manifest.payload.size_bytes / 2**20
            yield Finding("payload", "ok", path, f"loaded, {size:.1f} MiB", "its digest")
    if examination.look.lost and examination.settled:
        path, expected = examination.path(), "a checkpoint of this run"
        yield Finding("payload", "failed", path, examination.look.lost, expected, NOTHING_GOOD)


def _uncommitted(examination: Examination, path: str) -> Finding:
    """What is left of a save that was cut short, the first one or a later one."""
    action = "nothing: the next save of this step replaces it"
    if examination.look.is_empty:
        action = "nothing: a resume moves it to quarantine and starts at step 0"
    return Finding("payload", "warning", path, "no manifest", "a whole save", action)


@as_check("counters")
def counters(examination: Examination) -> Iterator[Finding]:
    """Step and counters agree wherever they are stored, and every number is finite."""
    for found in examination.look.judged:
        if found.verdict == "disagrees":
            yield _rejected(examination, "counters", found, "the same everywhere, all finite")
        elif found.verdict == "good" and found.facts is not None:
            path = examination.path(layout.payload_name(found.step))
            facts = found.facts
            said = f"step {facts.step}, {facts.samples} samples, {facts.tokens} tokens"
            yield Finding("counters", "ok", path, said, "the same everywhere, all finite")


def _rejected(examination: Examination, check: str, found: Judged, expected: str) -> Finding:
    """Quarantine it if that is allowed; never the last there is."""
    path = examination.path(layout.payload_name(found.step))
    if examination.look.is_stuck:
        return Finding(check, "failed", path, found.reason, expected, "see what stops the load")
    if examination.selected is None:
        return Finding(check, "failed", path, found.reason, expected, NOTHING_GOOD)
    with examination.repairing() as allowed:
        if not allowed:
            return Finding(check, "failed", path, found.reason, expected, examination.remedy())
        quarantine(examination.storage, found.candidate.files, found.reason)
    return Finding(check, "repaired", path, found.reason, f"{expected}: moved to quarantine")


@as_check("target")
def target(examination: Examination) -> Iterator[Finding]:
    """There is something left to train."""
    selected, goal = examination.selected, examination.target
    if selected is None or goal is None:
        return
    left = goal - selected.step
    found = f"step {selected.step}: " + (f"{left} steps to go" if left > 0 else "nothing to do")
    yield Finding("target", "ok", examination.run_dir, found, f"target {goal}")


@as_check("repetition")
def repetition(examination: Examination) -> Iterator[Finding]:
    """How many samples a resume would train on again, and how that is known."""
    selected = examination.selected
    if selected is None or selected.facts is None:
        return
    found = repeated(selected.facts.data)
    path = examination.path(layout.payload_name(selected.step))
    yield Finding("repetition", "ok", path, found, "0 samples trained on twice")


def repeated(data: Mapping[str, Any]) -> str:
    """In words: 0 for all kinds of data, and on what that rests."""
    position = data.get("samples")
    if "shuffle" in data:
        return f"0 samples: the order is a function of the seed, to go on at sample {position}"
    if data.get("own_state"):
        return f"0 samples: the data go on by a state of their own, at sample {position}"
    skipped = int(position or 0) - int(data.get("begun") or 0)
    return f"0 samples if the data repeat themselves: up to {skipped} are read again to skip them"


@as_check("previous")
def previous(examination: Examination) -> Iterator[Finding]:
    """The checkpoint before the selected one is kept until a resumed run has proved itself."""
    look, selected = examination.look, examination.look.selected
    if selected is None:
        return
    path, before = examination.path(), look.previous
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
    ("previous", previous),
)
