import pytest
import torch
import torch.nn.functional as F
from torch import nn

from speedtronic.errors import UsageError
from speedtronic.training.batch import compute_loss, count_labels, to_device


class Returns(nn.Module):
    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output
        self.got: tuple[object, ...] = ()

    def forward(self, *args: object, **kwargs: object) -> object:
        self.got = (args, kwargs)
        return self.output


LOSS = torch.tensor(2.5)
LOGITS = torch.randn(2, 3, 7)
LABELS = torch.tensor([[1, 2, -100], [3, -100, -100]])


@pytest.mark.parametrize(
    "output",
    [LOSS, {"loss": LOSS}, {"loss": LOSS, "logits": LOGITS}, (LOSS, LOGITS), [LOSS]],
    ids=["tensor", "dict", "dict with logits", "tuple", "list"],
)
def test_the_forms_of_a_loss(output: object) -> None:
    assert compute_loss(Returns(output), {"x": LOGITS}) is LOSS


def test_logits_alone_are_scored_against_labels_that_are_shifted_already() -> None:
    loss = compute_loss(Returns({"logits": LOGITS}), {"labels": LABELS})
    kept = LABELS != -100
    assert torch.equal(loss, F.cross_entropy(LOGITS[kept], LABELS[kept]))


@pytest.mark.parametrize(
    ("batch", "called"),
    [
        ({"a": LOSS, "b": LOSS}, ((), {"a": LOSS, "b": LOSS})),
        ((LOSS, LOGITS), ((LOSS, LOGITS), {})),
        ([LOSS, LOGITS], ((LOSS, LOGITS), {})),
        (LOSS, ((LOSS,), {})),
    ],
)
def test_how_a_batch_reaches_the_model(batch: object, called: object) -> None:
    model = Returns(LOSS)
    compute_loss(model, batch)
    assert str(model.got) == str(called)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (None, "a NoneType"),
        (3.0, "a float"),
        (LOGITS, r"a tensor of shape \[2, 3, 7\]"),
        ({"other": LOSS}, "a dict with other"),
        ({}, "a dict with nothing"),
        ((), "a tuple of"),
        (("text", LOSS), "a tuple of str, Tensor"),
        ({"logits": LOGITS}, r"logits of shape \[2, 3, 7\] and no loss; the batch has labels"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_line(output: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        compute_loss(Returns(output), {"x": LOGITS})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"labels": LABELS}, 3),
        ((LOGITS, LABELS), 3),
        ((LOGITS, torch.tensor([0, 1])), 2),
        ({"labels": LOGITS}, 0),
        ({"x": LABELS}, 0),
        (LABELS, 0),
        ((LABELS,), 0),
    ],
)
def test_labels_that_count(batch: object, count: int) -> None:
    assert count_labels(batch) == count


def test_everything_in_a_batch_moves() -> None:
    meta = torch.device("meta")
    moved = to_device({"a": LOSS, "b": [LOSS, (LOGITS, "name")]}, meta)
    assert moved["a"].device == meta
    assert moved["b"][0].device == meta
    assert moved["b"][1][0].device == meta
    assert moved["b"][1][1] == "name"


class Named(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + None  # type: ignore[operator]


def test_a_batch_that_forward_does_not_take_is_named() -> None:
    for batch, said in (
        ({"input_ids": LABELS, "labels": LABELS}, "a dict with input_ids, labels: .*'input_ids'"),
        ((LABELS, LABELS), "a tuple of Tensor, Tensor: .*takes 2 positional arguments"),
        ([], "a list of nothing: .*missing 1 required"),
    ):
        with pytest.raises(UsageError, match=f"the model cannot be called with a batch, {said}"):
            compute_loss(Named(), batch)


def test_an_error_within_the_model_is_left_as_it_is() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        compute_loss(Named(), {"tokens": LABELS})


def test_a_complex_loss_is_refused() -> None:
    with pytest.raises(UsageError, match="is complex"):
        compute_loss(Returns(torch.tensor(1j)), {"x": LABELS})


def test_an_id_without_a_row_is_named_with_the_range_of_the_batch() -> None:
    class Embeds(nn.Embedding):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids).sum()

    with pytest.raises(UsageError, match=r"its numbers are input_ids: 1 to 9\. Give"):
        compute_loss(Embeds(9, 2), {"input_ids": torch.tensor([1, 9])})
