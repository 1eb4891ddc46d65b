"""Read and verify every checkpoint of a directory, for `speedtronic inspect`. Reads only."""

from dataclasses import asdict, dataclass
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.candidates import Candidate, candidates, read_pointer
from speedtronic.checkpoint.quarantine import Quarantined, quarantined
from speedtronic.checkpoint.records import Pointer
from speedtronic.checkpoint.verdicts import Status, Verdict, walk
from speedtronic.errors import CheckpointError
from speedtronic.storage.base import Storage


@dataclass(frozen=True)
class CheckpointFinding:
    """One step, as `speedtronic inspect` shows it.

    Attributes:
        status: see `verdicts.Status`. A payload without a manifest is `uncommitted`, but
            `unverified` in a store without any manifest.
        reason: why it is not `verified`; empty if it is.
        size_bytes: of the payload; None if that is no regular file.
        digest, state_digest, samples, tokens: from the manifest, if it was read.
    """

    step: int
    file: str
    status: Status
    reason: str
    size_bytes: int | None = None
    digest: str | None = None
    state_digest: str | None = None
    samples: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Survey:
    """Everything in a checkpoint directory, newest checkpoint first."""

    pointer: Pointer | None
    pointer_problem: str
    selected: int | None
    run_id: str | None
    checkpoints: list[CheckpointFinding]
    quarantine: list[Quarantined]

    def to_dict(self) -> dict[str, Any]:
        """Convert to what `json.dumps` accepts."""
        return asdict(self) | {"pointer": self.pointer and self.pointer.model_dump()}


def survey(storage: Storage) -> Survey:
    """Read and verify every checkpoint of a directory; nothing is changed."""
    found = read_pointer(storage)
    steps = list(candidates(storage))
    any_manifest = any(candidate.committed for candidate in steps)
    run_id = found.pointer.run_id if found.pointer else None
    findings = []
    for verdict in walk(steps, run_id, _load_and_forget):
        if verdict.status == "verified" and run_id is None:
            run_id = verdict.candidate.manifest.run_id
        findings.append(_finding(storage, verdict, any_manifest))
    # A resume refuses to step back past what is no regular file.
    ends = next((f for f in findings if f.status in ("verified", "irregular")), None)
    selected = ends.step if ends and ends.status == "verified" else None
    problem = found.problem
    if found.pointer and found.pointer.step != selected:
        problem = f"stale: names step {found.pointer.step}"
    return Survey(found.pointer, problem, selected, run_id, findings, quarantined(storage))


def _load_and_forget(candidate: Candidate) -> None:
    """Load a checkpoint as a resume does, and free it at once: one at a time is in memory."""
    candidate.load()


def _finding(storage: Storage, verdict: Verdict[None], any_manifest: bool) -> CheckpointFinding:
    candidate, status = verdict.candidate, verdict.status
    name = layout.payload_name(candidate.step)
    size = storage.size(name) if name in candidate.files else None
    if status == "uncommitted" and not any_manifest:
        status = "unverified"
    judged_by_manifest = verdict.status not in ("uncommitted", "irregular")
    recorded = _recorded(candidate) if judged_by_manifest else {}
    return CheckpointFinding(
        step=candidate.step,
        file=name,
        status=status,
        reason=verdict.reason,
        size_bytes=size,
        **recorded,
    )


def _recorded(candidate: Candidate) -> dict[str, Any]:
    """What the manifest says; nothing if it cannot be read."""
    try:
        manifest = candidate.manifest
    except CheckpointError:
        return {}
    return {
        "digest": manifest.payload.digest,
        "state_digest": manifest.state_digest,
        "samples": manifest.samples,
        "tokens": manifest.tokens,
    }
