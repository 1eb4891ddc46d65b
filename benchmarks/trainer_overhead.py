"""What the trainer costs over the loop that a careful person would write: at most 3 %.

Two sides with the same weights, loader class and optimizer train the same samples: `Trainer.fit`,
logging every 10 steps into a hook that does nothing and saving nothing, and a bare PyTorch loop
with clipping, a learning rate that warms up, and a look at the loss every 10 steps. They take turns
in one process on one thread, each pair in the other order than the one before. A sample is bare
time / trainer time of a pair, so 1.0 means free; the figure is the median. At the end both must
have the same weights to the bit: they did the same work.
"""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from figures import AT_LEAST, show_figure

from speedtronic import SpeedtronicConfig
from speedtronic.data import build_loader
from speedtronic.model import build_model
from speedtronic.training.optimizers import build_optimizer
from speedtronic.training.precision import Precision
from speedtronic.training.rng import seed_all
from speedtronic.training.schedules import Schedule
from speedtronic.training.state import TrainState
from speedtronic.training.trainer import Trainer

BAR = 0.97
LOG_EVERY = 10
CPU = torch.device("cpu")

COMMON = {
    "device": "cpu",
    "scheduler": {"name": "constant", "warmup_steps": 100},
    "optimizer": {"grad_clip": 1.0},
}
SMALL = {
    "model": {"n_layer": 2, "d_model": 64, "n_head": 4, "vocab_size": 256, "max_seq_len": 32},
    "data": {"micro_batch_size": 4, "target_batch_size": 4, "shuffle": True},
}
MID = {
    "model": {"n_layer": 4, "d_model": 192, "n_head": 6, "vocab_size": 512, "max_seq_len": 64},
    "data": {"micro_batch_size": 4, "target_batch_size": 4, "shuffle": True},
}


@dataclass
class Silent:
    """A hook that does nothing."""

    def on_event(self, event: str, payload: dict[str, Any]) -> None: ...


@dataclass
class BareLoop:
    """Model, optimizer and loader, and the loop around them."""

    config: SpeedtronicConfig
    step: int = 0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed_all(self.config.run.seed)
        self.model = build_model(self.config.model).train()
        self.optimizer = build_optimizer(self.model, self.config)
        self.loader = build_loader(self.config, pin_memory=False)
        self.parameters = list(self.model.parameters())

    def train(self, num_steps: int) -> None:
        """Make `num_steps` updates."""
        peak, warmup = self.config.optimizer.lr, self.config.scheduler.warmup_steps
        clip = self.config.optimizer.grad_clip
        assert clip is not None
        for _ in range(num_steps):
            lr = peak * min(1.0, (self.step + 1) / warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.model(**self.loader.next_batch())["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, clip)
            self.optimizer.step()
            self.step += 1
            if self.step % LOG_EVERY == 0:
                self.losses.append(loss.item())


def build_trainer(config: SpeedtronicConfig) -> Trainer:
    """The same by the product's own parts, without a disk."""
    seed_all(config.run.seed)
    model = build_model(config.model).train()
    optimizer = build_optimizer(model, config)
    state = TrainState(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(
            optimizer,
            name=config.scheduler.name,
            warmup_steps=config.scheduler.warmup_steps,
            max_steps=config.run.max_steps,
            min_lr_ratio=config.scheduler.min_lr_ratio,
        ),
        scaler=None,
        batches=build_loader(config, pin_memory=False),
        device=CPU,
    )
    return Trainer(
        state,
        precision=Precision("fp32", CPU),
        grad_clip=config.optimizer.grad_clip,
        log_every=LOG_EVERY,
        hooks=[Silent()],
    )


def measure(config: SpeedtronicConfig, *, num_pairs: int, num_steps: int) -> list[float]:
    """Bare time / trainer time of each pair, a pair being `num_steps` on either side."""
    bare, trainer = BareLoop(config), build_trainer(config)

    def run_bare() -> None:
        bare.train(num_steps)

    def run_trainer() -> None:
        trainer.fit(trainer.state.step + num_steps)

    for _ in range(2):  # warm-up
        run_bare()
        run_trainer()
    ratios = []
    for number in range(num_pairs):
        if number % 2:
            trainer_s, bare_s = timed(run_trainer), timed(run_bare)
        else:
            bare_s, trainer_s = timed(run_bare), timed(run_trainer)
        ratios.append(bare_s / trainer_s)
        step_ms = bare_s / num_steps * 1000
        print(f"bare {step_ms:.2f} ms a step, ratio {bare_s / trainer_s:.4f}", file=sys.stderr)
    weights = zip(bare.parameters, trainer.state.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights), "the two sides trained different things"
    return ratios


def timed(run: Callable[[], None]) -> float:
    """Seconds that `run` takes with the garbage collector at rest."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    finally:
        gc.enable()


def main() -> int:
    torch.set_num_threads(1)
    small, mid = (SpeedtronicConfig.from_dict({**COMMON, **sizes}) for sizes in (SMALL, MID))
    figures = [
        ("trainer_small", measure(small, num_pairs=151, num_steps=4)),
        ("trainer_mid", measure(mid, num_pairs=61, num_steps=2)),
    ]
    held = [show_figure(name, values, holds=AT_LEAST, bar=BAR) for name, values in figures]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
