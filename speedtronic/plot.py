"""Draws the loss of runs as a PNG."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speedtronic.storage.regular_files import replace

MAX_POINTS = 2000  # of a curve: more than a picture has columns


def plot_losses(
    path: Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    marks: Mapping[str, Sequence[int]],
    marked: str = "killed",
    validation: Sequence[Mapping[str, Any]] = (),
    title: str,
) -> None:
    """Draw the loss of runs over each other as a PNG, with steps marked.

    Args:
        path: of the picture; its directory exists.
        runs: name -> `train_step` events, each with `step` and `loss`.
        marks: name of a run -> steps to mark on its curve.
        marked: what happened there, in a word or two.
        validation: `validation` events, each with `step` and `val_loss`, which may be None.
        title: above the picture.

    Raises:
        OutputDirError, StorageError: it cannot be written; the former picture is whole.
    """
    import matplotlib as mpl  # over half a second to import, and wanted at the end only

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), dpi=130, layout="constrained")
    styles: list[dict[str, Any]] = [
        {"color": "#1f4e79", "lw": 3.5, "alpha": 0.35},
        {"color": "#c8501e", "lw": 1.2},
    ]
    for (name, events), style in zip(runs.items(), styles[-len(runs) :], strict=False):
        steps, losses = _thinned(events, "loss")
        axes.plot(steps, losses, label=name, **style)
        at = [(step, _nearest(step, steps, losses)) for step in marks.get(name, ()) if steps]
        if at:
            axes.plot(*zip(*at, strict=True), "x", color="black", ms=9, mew=2, label=marked)
            for step, _ in at:
                axes.axvline(step, color="black", lw=0.6, ls=":")
    measured = [event for event in validation if event["val_loss"] is not None]
    if measured:
        axes.plot(*_thinned(measured, "val_loss"), "o-", color="#2e7d4f", ms=3, label="held-out")
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    plt.close(figure)
    replace(path, [picture.getvalue()])


def _thinned(events: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Return steps and values, averaged in groups where there are more than a picture can show."""
    size = -(-len(events) // MAX_POINTS) or 1
    groups = [events[i : i + size] for i in range(0, len(events), size)]
    return (
        [_mean(event["step"] for event in group) for group in groups],
        [_mean(event[key] for event in group) for group in groups],
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _nearest(step: int, steps: Sequence[float], losses: Sequence[float]) -> float:
    return min(zip(steps, losses, strict=True), key=lambda point: abs(point[0] - step))[1]
