"""Load samples in a resumable order, from text, tokens, synthetic or the user's data."""

from speedtronic.data.build import build_loader
from speedtronic.data.loader import SampleLoader
from speedtronic.data.sample_order import SampleOrder
from speedtronic.data.synthetic import SyntheticSource
from speedtronic.data.text import TextSource, find_files
from speedtronic.data.types import Batch, BatchLoader
from speedtronic.data.validation import validation_batches

__all__ = [
    "Batch",
    "BatchLoader",
    "SampleLoader",
    "SampleOrder",
    "SyntheticSource",
    "TextSource",
    "build_loader",
    "find_files",
    "validation_batches",
]
