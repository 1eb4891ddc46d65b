"""One walk decides which checkpoints are good; callers hand in how a payload is loaded."""

import gc
import weakref
from pathlib import Path

import pytest

from speedtronic.checkpoint import layout, open_storage
from speedtronic.checkpoint.candidates import Candidate, candidates
from speedtronic.checkpoint.verdicts import judge, walk
from speedtronic.errors import CorruptError, NoValidCheckpointError, StorageError
from tests.unit.checkpoint.states import open_store, state_at


class Buffer:
    """Stands for the memory that a load takes."""


@pytest.fixture
def found(tmp_path: Path) -> list[Candidate]:
    """Steps 8 (no manifest), 6, 4 and 2 of one run."""
    store = open_store(tmp_path)
    for step in (2, 4, 6, 8):
        store.save(state_at(step))
    (tmp_path / layout.manifest_name(8)).unlink()
    return list(candidates(open_storage(str(tmp_path))))


def test_each_is_loaded_only_when_its_verdict_is_asked_for(found: list[Candidate]) -> None:
    loaded: list[int] = []
    verdicts = walk(found, None, lambda candidate: loaded.append(candidate.step) or candidate.step)
    assert next(verdicts).status == "uncommitted"
    assert loaded == []
    verdict = next(verdicts)
    assert (verdict.status, verdict.loaded, verdict.reason) == ("verified", 6, "")
    assert loaded == [6]


def test_the_first_verified_one_names_the_run(found: list[Candidate], tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    other.save(state_at(5))
    foreign = list(candidates(open_storage(str(tmp_path / "other"))))
    statuses = [v.status for v in walk([*found[1:2], *foreign], None, Candidate.check)]
    assert statuses == ["verified", "foreign"]
    assert judge(foreign[0], None, Candidate.check).status == "verified"


@pytest.mark.parametrize(
    ("error", "status", "blocks"),
    [(CorruptError("rot"), "corrupt", False), (StorageError("no handles"), "unverified", True)],
)
def test_what_a_loader_raises_decides(
    found: list[Candidate], error: CorruptError | StorageError, status: str, blocks: bool
) -> None:
    def fail(candidate: Candidate) -> None:
        raise error

    verdict = judge(found[1], None, fail)
    assert (verdict.status, verdict.reason, verdict.error) == (status, str(error), error)
    assert verdict.blocks_resume == blocks
    if blocks:
        with pytest.raises(StorageError, match="no handles"):
            verdict.raise_if_blocking()
    else:
        verdict.raise_if_blocking()


def test_a_link_is_never_loaded(found: list[Candidate], tmp_path: Path) -> None:
    payload = tmp_path / layout.payload_name(6)
    payload.rename(tmp_path / "elsewhere")
    payload.symlink_to(tmp_path / "elsewhere")
    (_, candidate, *_) = candidates(open_storage(str(tmp_path)))
    verdict = judge(candidate, None, Candidate.load)
    assert verdict.status == "irregular"
    with pytest.raises(NoValidCheckpointError, match=r"is a link to .*nothing was changed"):
        verdict.raise_if_blocking()


def test_a_verdict_holds_no_memory_of_a_failed_load(found: list[Candidate]) -> None:
    buffers: list[weakref.ref[Buffer]] = []

    def fail(candidate: Candidate) -> None:
        buffer = Buffer()
        buffers.append(weakref.ref(buffer))
        try:
            raise OSError("in the middle of a read")
        except OSError as error:
            raise CorruptError("rot") from error

    verdict = judge(found[1], None, fail)
    gc.collect()
    assert verdict.error is not None
    assert buffers[0]() is None
