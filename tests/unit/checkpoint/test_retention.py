"""Which steps go: a list in, a list out."""

import pytest

from speedtronic.checkpoint.retention import Retention


@pytest.mark.parametrize(
    ("steps", "keep_last", "protected", "deleted"),
    [
        ([], 1, (), []),
        ([2], 1, (), []),
        ([2, 4, 6], 1, (), [2, 4]),
        ([6, 2, 4], 2, (), [2]),
        ([2, 4, 6], 3, (), []),
        ([2, 4, 6], None, (), []),
        ([2, 4, 6], 1, (2,), [4]),
        ([2, 4, 6], 2, (6,), [2]),
        ([9, 10, 100], 1, (), [9, 10]),  # by number: as text, 9 would be the newest
    ],
)
def test_deletes_the_lowest(
    steps: list[int], keep_last: int | None, protected: tuple[int, ...], deleted: list[int]
) -> None:
    retention = Retention(keep_last)
    assert retention.steps_to_delete(steps, val_losses={}, protected=protected) == deleted


@pytest.mark.parametrize(
    ("retention", "deleted"),
    [
        (Retention(1, keep_best=1), [2, 4, 8]),
        (Retention(1, keep_best=2), [4, 8]),
        (Retention(1, keep_every=4), [2, 6]),
        (Retention(1, keep_every=5), [2, 4, 6, 8]),
        (Retention(2, keep_best=1, keep_every=4), [2]),
        (Retention(None, keep_best=1, keep_every=4), []),
    ],
)
def test_keeps_the_best_and_the_milestones_besides(
    retention: Retention, deleted: list[int]
) -> None:
    val_losses = {2: 0.5, 4: 0.9, 6: 0.5}  # of equals the later is the better
    deletes = retention.steps_to_delete([2, 4, 6, 8, 10], val_losses=val_losses, protected=())
    assert deletes == deleted
