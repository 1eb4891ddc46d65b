"""What happened in a run, as a record, and its loss as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speedtronic.checkpoint import Pointer


@dataclass
class ChunkReport:
    """One chunk: what was planned and what it took.

    Attributes:
        start, target: the steps planned.
        trained_to: the step reached; None while it is not finished.
        attempts: tries, the successful one included.
        failures: how each failed attempt ended, in order.
        elapsed_s: wall time, retries and their delays included.
        loss: mean loss of the chunk's last update.
    """

    start: int
    target: int
    trained_to: int | None = None
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    loss: float | None = None


@dataclass
class RunReport:
    """A flow run from its first restore to its last chunk.

    Attributes:
        name, output_dir: of the run, as configured.
        start_step: where the newest good checkpoint was; 0 for a fresh run.
        target_step: `max(start_step, requested)`.
        trained_to: the step reached; beyond `pointer.step` when it is off the interval.
        pointer: the newest checkpoint; None if none was due yet.
        samples, tokens: since the run began.
        loss: mean loss of the last update; None before the first one.
        val_loss: the newest validation loss; None before the first.
        notes: what differs from when the run was begun or last saved.
        chunks: in order.
        restores: the steps at which state was loaded from disk, the start included, in order.
    """

    name: str
    output_dir: str
    start_step: int
    target_step: int
    trained_to: int
    pointer: Pointer | None
    samples: int = 0
    tokens: int = 0
    loss: float | None = None
    val_loss: float | None = None
    notes: list[str] = field(default_factory=list)
    chunks: list[ChunkReport] = field(default_factory=list)
    restores: list[int] = field(default_factory=list)

    @property
    def attempts(self) -> int:
        """Tries of all chunks together."""
        return sum(chunk.attempts for chunk in self.chunks)

    @property
    def failures(self) -> list[str]:
        """How each failed attempt ended, in order."""
        return [failure for chunk in self.chunks for failure in chunk.failures]


def plot_losses(
    path: Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    marks: Mapping[str, Sequence[int]],
    title: str,
) -> None:
    """Draw the loss of runs over each other as a PNG, with steps marked.

    Args:
        path: of the picture; its directory exists.
        runs: name -> `train_step` events, each with `step` and `loss`.
        marks: name of a run -> steps to mark on its curve.
        title: above the picture.
    """
    import matplotlib as mpl  # over half a second to import, and wanted at the end only

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), dpi=130, layout="constrained")
    styles: list[dict[str, Any]] = [
        {"color": "#1f4e79", "lw": 3.5, "alpha": 0.35},
        {"color": "#c8501e", "lw": 1.2},
    ]
    for (name, events), style in zip(runs.items(), styles, strict=False):
        steps = [event["step"] for event in events]
        losses = [event["loss"] for event in events]
        axes.plot(steps, losses, label=name, **style)
        at = dict(zip(steps, losses, strict=True))
        marked = [step for step in marks.get(name, ()) if step in at]
        if marked:
            axes.plot(
                marked, [at[s] for s in marked], "x", color="black", ms=9, mew=2, label="killed"
            )
            for step in marked:
                axes.axvline(step, color="black", lw=0.6, ls=":")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)
