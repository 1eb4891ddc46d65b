"""The step loop, on a model of a few numbers and without a disk."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.checkpoint.digest import state_digest
from speedtronic.errors import NonFiniteError, RestoreError, UsageError
from speedtronic.training.precision import resolve_precision
from speedtronic.training.rng import capture_rng, restore_rng, seed_all
from speedtronic.training.schedules import Schedule
from speedtronic.training.state import TrainState
from speedtronic.training.trainer import Trainer

CPU = torch.device("cpu")
PRECISION = resolve_precision("fp32", CPU)


class Model(nn.Module):
    """A linear fit with a bit of everything: dropout, a frozen part, modes that differ."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.fit = nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        predicted = self.dropout(self.fit(input_ids)).squeeze(-1)
        return {"loss": (predicted - labels).square().mean()}


class Numbers:
    """Batches that are a function of the position."""

    def __init__(self, micro_batch_size: int = 4) -> None:
        self.position = self.marked = 0
        self.micro_batch_size = micro_batch_size

    def mark(self) -> None:
        self.marked = self.position

    def back_to_mark(self) -> None:
        self.position = self.marked

    def next_batch(self) -> dict[str, Tensor]:
        n = torch.arange(self.position, self.position + self.micro_batch_size).float()
        self.position += self.micro_batch_size
        x = torch.stack([n.sin(), n.cos(), (2 * n).sin(), (3 * n).cos()], dim=-1)
        return {"input_ids": x, "labels": x.sum(-1).round().long()}

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.position}

    def load_state_dict(self, state: dict[str, Any], **options: Any) -> None:
        self.position = state["samples"]


@dataclass
class Recorder:
    """What a trainer told the world."""

    saves: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def save(self, state: dict[str, Any]) -> None:
        self.saves.append(copy.deepcopy(state))

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        self.events.append({"event": event, **payload})

    @property
    def saved(self) -> list[int]:
        return [state["step"] for state in self.saves]


def make_state(build: Callable[[], nn.Module] = Model, batches: Any = None) -> TrainState:
    seed_all(3)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = Schedule(optimizer, name="cosine", warmup_steps=2, max_steps=20, min_lr_ratio=0.1)
    return TrainState(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scaler=None,
        batches=batches or Numbers(),
        device=CPU,
    )


def make_trainer(
    state: TrainState | None = None, **changes: Any
) -> tuple[Trainer, TrainState, Recorder]:
    state, recorder = state or make_state(), Recorder()
    fields = {"save": recorder.save, "save_every": 2, "log_every": 1}
    trainer = Trainer(
        state,
        precision=PRECISION,
        hooks=[recorder],
        on_step=recorder.steps.append,
        **{**fields, **changes},
    )
    return trainer, state, recorder


# --- targets, saves, events ---


@pytest.mark.parametrize(
    ("target", "save_on_stop", "saved"),
    [(3, False, [2]), (4, False, [2, 4]), (5, False, [2, 4]), (5, True, [2, 4, 5])],
)
def test_saves_at_multiples_and_on_request_at_the_end(
    target: int, save_on_stop: bool, saved: list[int]
) -> None:
    trainer, _, recorder = make_trainer(save_on_stop=save_on_stop)
    result = trainer.fit(target)
    assert result.steps == target
    assert recorder.saved == saved
    assert recorder.steps == list(range(1, target + 1))
    assert result.metrics["updates"] == target


def test_a_target_is_absolute_and_one_already_reached_changes_nothing() -> None:
    trainer, state, recorder = make_trainer(save_on_stop=True)
    trainer.fit(5)
    before = state_digest(state.state_dict())
    rng = torch.get_rng_state()
    for target in (5, 2, 0):
        result = trainer.fit(target)
        assert (result.steps, result.metrics["updates"]) == (5, 0)
        assert result.final_loss == state.loss
    assert recorder.saved == [2, 4, 5]
    assert state_digest(state.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), rng)
    assert trainer.fit(6).metrics["updates"] == 1


def test_counts_samples_and_labels() -> None:
    trainer, state, _ = make_trainer(accumulation=3)
    result = trainer.fit(2)
    assert (result.samples, result.tokens) == (24, 24)
    assert state.batches.position == 24


def test_labels_that_are_ignored_do_not_count() -> None:
    class Masked(Numbers):
        def next_batch(self) -> dict[str, Tensor]:
            batch = super().next_batch()
            batch["labels"][0] = -100
            return batch

    assert make_trainer(make_state(batches=Masked()))[0].fit(2).tokens == 6


def test_an_event_tells_of_the_update_just_made() -> None:
    trainer, state, recorder = make_trainer(log_every=2)
    rates = []
    trainer._on_step = lambda step: rates.append(state.schedule.lr)
    first = state.schedule.lr
    trainer.fit(5)
    assert [event["step"] for event in recorder.events] == [2, 4]
    assert [event["lr"] for event in recorder.events] == [rates[0], rates[2]]
    assert first != rates[0]
    event = recorder.events[0]
    assert event.keys() == {"event", "step", "loss", "lr", "samples", "tokens", "tokens_per_s"}
    assert (event["event"], event["samples"]) == ("train_step", 8)
    assert event["tokens_per_s"] > 0


def test_a_stop_lets_the_update_at_hand_end() -> None:
    trainer, _, recorder = make_trainer(save_on_stop=True)
    trainer._on_step = lambda step: trainer.request_stop() if step == 3 else None
    assert trainer.fit(9).steps == 3
    assert recorder.saved == [2, 3]


def test_a_stop_before_the_first_step_trains_nothing() -> None:
    trainer, _, recorder = make_trainer(save_on_stop=True)
    trainer.request_stop()
    assert trainer.fit(9).steps == 0
    assert recorder.saved == []


# --- the numbers ---


def test_the_loss_falls() -> None:
    trainer, _, recorder = make_trainer()
    trainer.fit(20)
    losses = [event["loss"] for event in recorder.events]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_equals_one_big_batch(accumulation: int) -> None:
    big, big_state, big_recorder = make_trainer(make_state(batches=Numbers(8)))
    small, small_state, small_recorder = make_trainer(
        make_state(batches=Numbers(8 // accumulation)), accumulation=accumulation
    )
    assert big.fit(6).samples == small.fit(6).samples
    for a, b in zip(big_state.model.parameters(), small_state.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    for event, other in zip(big_recorder.events, small_recorder.events, strict=True):
        assert event["loss"] == pytest.approx(other["loss"], abs=1e-5)


def gradient_norm(model: nn.Module) -> float:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return float(torch.stack([g.norm() for g in grads]).norm())


def test_the_gradient_is_clipped_as_a_whole() -> None:
    trainer, state, _ = make_trainer()
    trainer.fit(1)
    assert gradient_norm(state.model) > 0.1
    clipped, clipped_state, _ = make_trainer(grad_clip=0.1)
    clipped.fit(1)
    assert gradient_norm(clipped_state.model) == pytest.approx(0.1, rel=1e-3)


class Watched(Tensor):
    """A loss that notes who reads its value, for which one would have to wait for a GPU."""

    reads: list[str]
    READS = (
        "__float__", "__int__", "__bool__", "__index__", "item", "tolist", "numpy", "cpu", "to",
        "__repr__", "__format__", "is_nonzero", "__array__",
    )  # fmt: skip

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in cls.READS:
            cls.reads.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class WatchedModel(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": super().forward(input_ids, labels)["loss"].as_subclass(Watched)}


@pytest.mark.parametrize(
    ("log_every", "save_every", "reads"),
    [(1, 100, 8), (4, 100, 2), (100, 100, 1), (100, 4, 2)],  # the final loss included
)
def test_the_loss_is_read_at_the_logging_cadence_only(
    log_every: int, save_every: int, reads: int
) -> None:
    Watched.reads = []
    trainer, _, _ = make_trainer(
        make_state(WatchedModel),
        accumulation=3,
        grad_clip=1.0,
        log_every=log_every,
        save_every=save_every,
    )
    assert trainer.fit(7).final_loss is not None
    assert Watched.reads == ["__float__"] * reads


# --- what must not be saved ---


class Exploding(Model):
    """The loss of update `at` (from 1) is `value`."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__()
        self.at, self.value, self.calls = at, value, 0

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        loss = super().forward(input_ids, labels)["loss"]
        return {"loss": loss * self.value if self.calls == self.at else loss}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_not_finite_fails_the_run_and_is_not_saved(
    value: float, log_every: int
) -> None:
    trainer, _, recorder = make_trainer(
        make_state(lambda: Exploding(4, value)), log_every=log_every
    )
    with pytest.raises(NonFiniteError, match=r"loss of step 4 is -?(nan|inf)"):
        trainer.fit(9)
    assert recorder.saved == [2]


def test_it_is_noticed_by_the_next_save_at_the_latest() -> None:
    trainer, _, recorder = make_trainer(make_state(lambda: Exploding(3, math.nan)), log_every=100)
    with pytest.raises(NonFiniteError, match="loss of step 4 is nan"):
        trainer.fit(9)
    assert recorder.saved == [2]


def test_it_is_noticed_at_the_end_of_a_run_that_saves_nothing() -> None:
    trainer, _, _ = make_trainer(
        make_state(lambda: Exploding(3, math.nan)), log_every=100, save=None
    )
    with pytest.raises(NonFiniteError):
        trainer.fit(3)


@pytest.mark.parametrize("output", [None, 1.5, {"loss": 2.0}, torch.ones(2)])
def test_a_model_without_a_scalar_loss_is_named(output: Any) -> None:
    class Odd(Model):
        def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
            return output

    with pytest.raises(UsageError, match="expected a scalar loss tensor"):
        make_trainer(make_state(Odd))[0].fit(1)


# --- restoring ---


def dropping() -> TrainState:
    return make_state(lambda: Model(dropout=0.5))


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_restored_state_goes_on_to_the_same_bits(cut: int) -> None:
    whole, whole_state, _ = make_trainer(dropping())
    whole.fit(8)
    expected = state_digest(whole_state.state_dict())  # now: it holds the global random streams
    first, _, recorder = make_trainer(dropping())
    first.fit(cut)
    state = dropping()
    state.load_state_dict(recorder.saves[-1])
    torch.rand(5)  # whatever is drawn between a restore and the first step does not matter
    second, _, _ = make_trainer(state)
    second.fit(8)
    assert state_digest(state.state_dict()) == expected


def test_a_state_restored_and_not_trained_is_the_one_that_was_saved() -> None:
    trainer, _, recorder = make_trainer(dropping())
    trainer.fit(4)
    state = dropping()
    state.load_state_dict(recorder.saves[-1])
    torch.rand(5)
    assert state_digest(state.state_dict()) == state_digest(recorder.saves[-1])


def test_the_random_streams_are_restored_just_before_the_first_step() -> None:
    trainer, _, recorder = make_trainer(dropping())
    trainer.fit(4)
    state = dropping()
    before = torch.get_rng_state()
    state.load_state_dict(recorder.saves[-1])
    assert torch.equal(torch.get_rng_state(), before)
    state.apply_pending_rng()
    assert torch.equal(torch.get_rng_state(), recorder.saves[-1]["rng"]["torch"])
    torch.rand(5)
    state.apply_pending_rng()  # once only
    assert not torch.equal(torch.get_rng_state(), recorder.saves[-1]["rng"]["torch"])


def test_each_module_is_back_in_its_mode() -> None:
    state = make_state()
    state.model.train()
    state.model.get_submodule("norm").eval()
    saved = copy.deepcopy(state.state_dict())
    other = make_state()
    other.model.eval()
    other.load_state_dict(saved)
    modes = {name: module.training for name, module in other.model.named_modules()}
    assert modes == {"": True, "fit": True, "dropout": True, "norm": False}


def test_the_learning_rate_is_the_schedule_s_after_a_restore() -> None:
    trainer, _, recorder = make_trainer()
    trainer.fit(6)
    saved = recorder.saves[-1]
    for group in saved["optimizer"]["param_groups"]:
        group["lr"] = 123.0
    state = make_state()
    state.load_state_dict(saved)
    assert {group["lr"] for group in state.optimizer.param_groups} == {state.schedule.lr}
    assert state.schedule.lr < 0.05


MISFITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a tensor of another shape": lambda s: s["model"].update({"fit.weight": torch.ones(2, 4)}),
    "a tensor missing": lambda s: s["model"].pop("fit.weight"),
    "a tensor too many": lambda s: s["model"].update(extra=torch.ones(1)),
    "a module missing": lambda s: s["modes"].pop("norm"),
    "optimizer groups": lambda s: s["optimizer"].update(param_groups=[]),
    "no optimizer groups": lambda s: s["optimizer"].pop("param_groups"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_an_error(name: str) -> None:
    trainer, _, recorder = make_trainer()
    trainer.fit(2)
    saved = recorder.saves[-1]
    MISFITS[name](saved)
    with pytest.raises(RestoreError):
        make_state().load_state_dict(saved)


def test_a_shape_that_does_not_fit_is_named_with_both_shapes() -> None:
    saved = copy.deepcopy(make_state().state_dict())
    saved["model"]["fit.weight"] = torch.ones(2, 4)
    with pytest.raises(RestoreError, match=r"(?s)fit\.weight.*\[2, 4\].*\[1, 4\]"):
        make_state().load_state_dict(saved)


@pytest.fixture(autouse=True)
def streams_left_as_they_were() -> Any:
    before = capture_rng(CPU)
    yield
    restore_rng(before, CPU)


class Partly(Model):
    """Trains `fit` only from the fourth call on."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.calls, self.free = 0, nn.Parameter(torch.ones(1))
        self.fit.requires_grad_(not frozen)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        self.fit.requires_grad_(self.calls > 3)
        return {"loss": (self.fit(input_ids).squeeze(-1) * self.free - labels).square().mean()}


@pytest.mark.parametrize("frozen", [True, False])
def test_what_the_optimizer_does_not_know_is_never_left_untrained_in_silence(
    frozen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state = make_state(lambda: Partly(frozen))
    if frozen:
        known = [p for p in state.model.parameters() if p.requires_grad]
        state.optimizer = torch.optim.AdamW(known, lr=0.05)
    before = state.model.fit.weight.clone()
    trainer, _, _ = make_trainer(state, grad_clip=1.0)
    trainer.fit(3)
    assert torch.equal(state.model.fit.weight, before)
    assert not caplog.messages
    trainer.fit(6)
    assert torch.equal(state.model.fit.weight, before) == frozen
    said = [line for line in caplog.messages if "fit.weight and 1 more requires a gradient" in line]
    assert len(said) == frozen


def test_a_loss_that_depends_on_nothing_is_refused() -> None:
    class Detached(Model):
        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": super().forward(input_ids, labels)["loss"].detach()}

    with pytest.raises(UsageError, match="depends on no parameter that requires a gradient"):
        make_trainer(make_state(Detached))[0].fit(1)
