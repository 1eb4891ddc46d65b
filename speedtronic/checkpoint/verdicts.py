"""Decide which checkpoints of a directory are good: the one walk that all commands share.

A resume, `inspect`, `verify`, `recover`, `export`, `compare` and `rollback` differ in how a payload
is loaded and in where they stop. They agree on what is good, so both are handed in or left to them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import Generic, Literal, TypeVar

from speedtronic.checkpoint.candidates import Candidate
from speedtronic.errors import CheckpointError, CorruptError, StorageError, UnsupportedFormatError

T = TypeVar("T")

# verified     the payload was read, and is what the manifest says
# corrupt      manifest or payload are not what was saved
# foreign      the manifest names another run
# uncommitted  a payload without a manifest, left of an interrupted save
# irregular    a link, a folder, a pipe or the like has the name of one of the files
# unverified   a newer version wrote it, or the machine could not read it
Status = Literal["verified", "corrupt", "foreign", "uncommitted", "irregular", "unverified"]

# Reads a committed candidate of the right run and returns what the caller wants of it, or raises
# CorruptError, StorageError or UnsupportedFormatError. `Candidate.load` loads in this process,
# `Candidate.check` only reads the bytes, `CheckpointJudge` loads in a child with a memory limit.
Loader = Callable[[Candidate], T]


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """What is known of one step after it was judged.

    Attributes:
        reason: why it is not verified, in a few words; empty if it is.
        loaded: what the loader returned; None unless verified.
        error: what the loader or the manifest raised, if `corrupt` or `unverified`.
    """

    candidate: Candidate
    status: Status
    reason: str = ""
    loaded: T | None = field(default=None, repr=False)
    error: CheckpointError | None = None

    @property
    def step(self) -> int:
        return self.candidate.step

    @property
    def blocks_resume(self) -> bool:
        """Whether a resume must end with an error here, and not step back to an older one."""
        return self.status in ("irregular", "unverified")

    def raise_if_blocking(self) -> None:
        """Raise if a resume must not step back past this checkpoint.

        Raises:
            NoValidCheckpointError: one of its files is a link, a folder or the like.
            StorageError, UnsupportedFormatError: it could not be judged.
        """
        if self.status == "irregular":
            self.candidate.refuse_irregular()
        if self.status == "unverified" and self.error is not None:
            raise self.error


def judge(candidate: Candidate, run_id: str | None, load: Loader[T]) -> Verdict[T]:
    """Judge one step; its payload is loaded only if nothing else decides.

    Args:
        run_id: the run whose checkpoints count; None accepts any.
        load: reads the payload.
    """
    try:
        if candidate.irregular and not candidate.is_foreign_to(run_id):
            irregular = "; ".join(f"{name} is {kind}" for name, kind in candidate.irregular.items())
            return Verdict(candidate, "irregular", irregular)
        if not candidate.committed:
            return Verdict(candidate, "uncommitted", "it has no manifest")
        owner = candidate.manifest.run_id
        if run_id is not None and owner != run_id:
            return Verdict(candidate, "foreign", f"of run {owner}, not {run_id}")
        return Verdict(candidate, "verified", loaded=load(candidate))
    except CorruptError as error:
        return _unsuccessful(candidate, "corrupt", error)
    except (UnsupportedFormatError, StorageError) as error:
        return _unsuccessful(candidate, "unverified", error)


def walk(found: Iterable[Candidate], run_id: str | None, load: Loader[T]) -> Iterator[Verdict[T]]:
    """Judge candidates in their order, newest first, each when its verdict is asked for.

    Args:
        run_id: the run whose checkpoints count; None until the first verified one names it.
    """
    for candidate in found:
        verdict = judge(candidate, run_id, load)
        if verdict.status == "verified" and run_id is None:
            run_id = candidate.manifest.run_id
        yield verdict


def _unsuccessful(candidate: Candidate, status: Status, error: CheckpointError) -> Verdict[T]:
    """A verdict that keeps an error without the memory of the failed load, maybe a whole payload,
    which the local variables in its traceback would hold."""
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__cause__
    return Verdict(candidate, status, str(error), error=error)
