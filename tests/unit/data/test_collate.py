from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.data.collate import collate, first_tensor
from speedtronic.errors import DataError


@pytest.mark.parametrize(
    "sample",
    [
        {"input_ids": torch.arange(3), "labels": 1, "weight": 0.5},
        {"image": np.zeros((2, 3), dtype=np.float32)},
        (torch.ones(2), 3),
        [np.ones(2), np.int64(3)],
        torch.ones(2, 2),
        np.ones(3),
        {"nested": {"a": (torch.ones(1), 2)}},
        3,
        2.5,
    ],
)
def test_it_is_torchs_default(sample: Any) -> None:
    expected = torch.utils.data.default_collate([sample, sample])
    torch.testing.assert_close(collate([sample, sample]), expected)


def test_strings_stay_strings() -> None:
    assert collate([{"name": "a"}, {"name": "b"}]) == {"name": ["a", "b"]}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([torch.ones(3), torch.ones(4)], r"they are of shape \(3,\) in one and \(4,\) in another"),
        ([np.ones((2, 1)), np.ones((2, 2))], r"they are of shape \(2, 1\) in one and \(2, 2\)"),
        ([(1, torch.ones(3)), (1, torch.ones(1))], r"\[1\] is of shape \(3,\) in one and \(1,\)"),
        (
            [{"a": {"b": torch.ones(2)}}, {"a": {"b": torch.ones(3)}}],
            r"\['a'\]\['b'\] is of shape \(2,\) in one and \(3,\) in another; pad them",
        ),
        ([{"a": 1}, {"b": 1}], r"\['a'\] is in some and not in others"),
        ([(1, 2), (1,)], r"\[1\] is in some and not in others"),
        ([{"a": object()}] * 2, r"cannot be put together into a batch: .*object"),
        ([{"a": None}] * 2, r"cannot be put together into a batch: .*NoneType"),
        (
            [{"ids": [1, 2]}] * 2,
            r"'ids' of a sample is a list of numbers; .*with_format\('torch'\)",
        ),
    ],
)
def test_what_makes_no_batch_is_refused_in_one_line(samples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        collate(samples)
    assert "\n" not in str(caught.value)


def test_first_tensor() -> None:
    wanted = torch.ones(3, 2)
    for batch in (wanted, [wanted], (torch.tensor(1), wanted), {"a": "b", "c": {"d": wanted}}):
        assert first_tensor(batch) is wanted
    assert first_tensor({"a": 1}) is None
