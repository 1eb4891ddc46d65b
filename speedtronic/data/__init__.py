"""Sources of samples, the resumable order in which they come, and the loader."""

from speedtronic.data.build import build_loader
from speedtronic.data.loader import SampleLoader
from speedtronic.data.order import SampleOrder
from speedtronic.data.synthetic import SyntheticSource
from speedtronic.data.text import TextSource, find_files

__all__ = [
    "SampleLoader",
    "SampleOrder",
    "SyntheticSource",
    "TextSource",
    "build_loader",
    "find_files",
]
