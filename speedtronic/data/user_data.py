"""Make the user's data by their factory, and read a map-style dataset as a source of samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, IterableDataset

from speedtronic.config.references import substitute
from speedtronic.data.collate import collate
from speedtronic.data.fingerprint import digest, fingerprint, spread
from speedtronic.data.generators import generators_in, listeners_in, tell_epoch
from speedtronic.data.seeding import seed_streams, streams_kept
from speedtronic.data.types import Batch
from speedtronic.errors import ConfigError, DataError
from speedtronic.liveness import report_progress
from speedtronic.user_code import call_data_factory

if TYPE_CHECKING:
    from speedtronic.config.sections import DataConfig, ValidationConfig

logger = logging.getLogger(__name__)

Kind = Literal["map", "stream", "batches"]


def make_own(key: str, section: DataConfig | ValidationConfig, seed: int) -> Any:
    """Call the factory `section.dataset`; what it draws at random depends on `seed` alone.

    Raises:
        ConfigError: it does not import or raises.
    """
    assert section.dataset is not None
    with streams_kept():
        seed_streams(seed, 0, 0)
        args = substitute(section.dataset_args, f"{key}_args")
        return call_data_factory(key, section.dataset, args, shown=section.dataset_args)


def kind_of(key: str, made: Any) -> Kind:
    """Whether `made` gives samples by index, samples one by one, or batches.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(made, DataLoader):
        return "batches"
    # First, for it inherits a __getitem__ that only raises, and may have a length.
    if isinstance(made, IterableDataset):
        return "stream"
    if not isinstance(made, Mapping | str | bytes | type):
        if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
            return "map"
        if hasattr(made, "__iter__"):
            return "stream"
    hint = f"; take one of {', '.join(map(str, made))}" if isinstance(made, Mapping) else ""
    raise ConfigError(
        f"{key}: the factory returned a {type(made).__name__}, expected a dataset with __len__ and "
        f"__getitem__, one with __iter__, or a torch DataLoader{hint}"
    )


class MapSource:
    """Reads a map-style dataset of the user's, each item under a seed of its own.

    Python's, NumPy's and torch's global streams are seeded from (seed, epoch, index) before an item
    is fetched and put back after; so what is drawn for it depends neither on workers nor on what
    was fetched before. `set_epoch` of the dataset, or of what it wraps, is told the epoch first.

    Args:
        dataset: has `__len__` and `__getitem__`.
        seed: of all draws.
        key: of the configuration, for messages.

    Raises:
        DataError: there are no items.
    """

    def __init__(self, dataset: Any, *, seed: int, key: str = "data.dataset") -> None:
        self._dataset = dataset
        self._seed = seed
        self._listens = bool(listeners_in(dataset))
        self._told: int | None = None
        if held := generators_in(dataset):
            logger.warning(
                "%s: %s is a generator that the dataset keeps; what it draws depends on what was "
                "fetched before, so a resume will differ. Draw from the global streams, or make it "
                "anew for each item",
                key,
                ", ".join(held),
            )
        try:
            num_items = len(dataset)
        except (TypeError, ValueError, OverflowError) as error:  # as Python says of a wrong length
            raise DataError(
                f"{key}: the {type(dataset).__name__} has no length: {error}"
            ) from error
        if num_items < 1:
            raise DataError(f"{key}: the {type(dataset).__name__} has no items")

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        return collate(self._items(indices, epochs))

    def fingerprint(self) -> str:
        """Return a fingerprint of the length, Hugging Face's own if any, and a few items."""
        indices = spread(len(self))
        own = getattr(self._dataset, "_fingerprint", None)
        return fingerprint(
            kind="map",
            num_items=len(self),
            own=own if isinstance(own, str) else None,
            items=[digest(item) for item in self._items(indices, [0] * len(indices))],
        )

    def _items(self, indices: Sequence[int], epochs: Sequence[int]) -> list[Any]:
        items = []
        with streams_kept():
            for number, (index, epoch) in enumerate(zip(indices, epochs, strict=True)):
                report_progress("reading samples of a batch", number + 1, len(indices))
                if self._listens and epoch != self._told:
                    self._told = epoch
                    tell_epoch(self._dataset, epoch)
                seed_streams(self._seed, epoch, index)
                items.append(self._dataset[index])
        return items
