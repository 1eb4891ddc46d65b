"""Choose how an iterable or a loader of the user's is resumed: by its state, or by skipping."""

from typing import Any, Literal

from torch.utils.data import DataLoader, IterableDataset

from speedtronic.data.generators import generators_in
from speedtronic.data.indexed_loader import is_indexed

ResumeMethod = Literal["state", "skipping the epoch", "skipping all"]

OF_WORKERS = (
    "its state there was complete, and after a resume it is so when each worker gave a batch"
)
WITHOUT_STATE = "with state_dict and load_state_dict it would go on at once"


def find_resume_method(source: Any) -> tuple[ResumeMethod, str]:
    """Find how `source` is brought to a position within it, and what rules out a faster method."""
    held = generators_in(source)
    if isinstance(source, DataLoader) and is_indexed(source):
        if not _has_state(source):
            return "skipping all", WITHOUT_STATE
        held = _state_kept_by(source.dataset)
        return (
            ("skipping all", f"its dataset keeps {', '.join(held)}")
            if held
            else ("state", OF_WORKERS)
        )
    parts = [source]
    if isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset):
        # Over a dataset without state, torchdata's loader skips, and the state that it gives after
        # that counts what it skipped twice (0.11).
        parts.append(source.dataset)
    if all(_has_state(part) for part in parts):
        return "state", OF_WORKERS
    lives_on = isinstance(source, DataLoader) and source.persistent_workers
    if hasattr(source, "set_epoch") and not held and not lives_on:
        return "skipping the epoch", WITHOUT_STATE
    return "skipping all", WITHOUT_STATE


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _state_kept_by(dataset: Any) -> list[str]:
    """List, for people, what a map-style dataset is seen to keep from item to item."""
    has_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    held = [f"a generator, {path}" for path in generators_in(dataset)]
    return held + (["a state of its own"] if has_state else [])
