"""Read held-out samples: the same batches each time, whatever the position and random state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from speedtronic.data.build import build_text
from speedtronic.data.types import Batch, SampleSource
from speedtronic.data.user_data import MapSource, kind_of, make_own
from speedtronic.errors import ConfigError, DataError

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig


def validation_batches(config: SpeedtronicConfig) -> Callable[[], Iterator[Batch]]:
    """Return a function that yields, at each call, the batches of the `validation` section.

    They are micro batches in the data's own order, as of epoch 0, at most `validation.max_batches`;
    the last one may have fewer samples. Text is read as for training: by `data.tokenizer` or as
    bytes, `data.block_size` tokens a sample.

    Raises:
        ConfigError: `validation.dataset` does not import, raises or gives no map-style dataset.
        DataError: there is no sample, or the text cannot be read.
    """
    source = _source(config)
    size, most = config.data.micro_batch_size, config.validation.max_batches

    def batches() -> Iterator[Batch]:
        for start in islice(range(0, len(source), size), most):
            indices = range(start, min(start + size, len(source)))
            yield source.batch(indices, [0] * len(indices))

    return batches


def _source(config: SpeedtronicConfig) -> SampleSource:
    section, seed, vocab_size = config.validation, config.data.seed, config.model.vocab_size
    if section.dataset is not None:
        key = "validation.dataset"
        made = make_own(key, section, seed)
        if kind_of(key, made) != "map":
            raise ConfigError(
                f"{key} is {section.dataset!r}; it returned a {type(made).__name__}, expected a "
                "map-style dataset, with __len__ and __getitem__"
            )
        return MapSource(made, seed=seed, key=key)
    assert section.text_path is not None, "the section names nothing to validate on"
    if config.data.tokenizer is None and vocab_size < 256:
        raise DataError(
            f"validation.text_path is read as bytes; model.vocab_size is {vocab_size}, it must be "
            "at least 256"
        )
    return build_text(config, section.text_path, key="validation.text_path")
