"""Which steps go: a list in, a list out."""

import pytest

from speedtronic.checkpoint.retention import steps_to_delete


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
    assert steps_to_delete(steps, keep_last=keep_last, protected=protected) == deleted
