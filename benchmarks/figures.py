"""How a figure is printed: one JSON object a line on standard output, and nothing else there."""

import json
import statistics
from collections.abc import Callable, Sequence
from operator import ge, le

AT_LEAST: Callable[[float, float], bool] = ge
AT_MOST: Callable[[float, float], bool] = le


def show_figure(
    name: str, values: Sequence[float], *, holds: Callable[[float, float], bool], bar: float
) -> bool:
    """Print the median of `values` against its bar.

    Args:
        name: of the figure.
        values: one a sample.
        holds: `AT_LEAST` or `AT_MOST`.
        bar: what the median is held against.

    Returns:
        Whether the bar holds.
    """
    median = statistics.median(values)
    record = {
        "name": name,
        "ratio": round(median, 4),
        "bar": bar,
        "holds": holds(median, bar),
        "samples": len(values),
    }
    print(json.dumps(record), flush=True)
    return holds(median, bar)
