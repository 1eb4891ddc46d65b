"""Models of one's own, named in test configurations as `tests.models:...`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BagOfBytes(nn.Module):
    """Predicts the next byte from the mean of a few; batch norm, dropout and a frozen layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, 256)
        self.second_norm = nn.BatchNorm1d(width)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.num_calls += 1
            if self.num_calls == 9:  # a mode of its own from here on, which a resume brings back
                self.second_norm.eval()
        x = self.frozen(self.embedding(input_ids))
        x = self.norm(x.transpose(1, 2))
        x = self.dropout(self.second_norm(x).transpose(1, 2))
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def bag_of_bytes(width: int = 16) -> nn.Module:
    return BagOfBytes(width)


def logits_only(width: int = 16) -> nn.Module:
    """Leaves the loss to the trainer."""

    class LogitsOnly(BagOfBytes):
        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"logits": super().forward(input_ids, labels)["logits"]}

    return LogitsOnly(width)


def no_loss() -> nn.Module:
    class NoLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
            return self.weight * input_ids

    return NoLoss()
