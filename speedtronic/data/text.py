"""Read text files as samples: bytes are tokens, memory-mapped and never loaded whole."""

import glob
import mmap
import sysconfig
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speedtronic.config.references import expand_path
from speedtronic.data.fingerprint import describe_file, fingerprint
from speedtronic.data.types import Batch, Sample, as_sample, stack
from speedtronic.errors import DataError

MAX_OPEN_MAPS = 64
INSTALLED = {"site-packages", "dist-packages"}


def find_files(text_path: str | Sequence[str], *, key: str = "data.text_path") -> list[Path]:
    """List the files that a `text_path` names: absolute, sorted, each once.

    Args:
        text_path: one entry or several. An entry is a file, whatever characters its name has, or
            else a glob pattern, in which `**` stands for folders of any depth. `file://` may stand
            in front; `{stdlib}` stands for Python's standard library without installed packages;
            relative paths start at the working directory.
        key: of the configuration, for messages.

    Raises:
        DataError: an entry names no file, a folder or a file that cannot be read.
    """
    entries = [text_path] if isinstance(text_path, str) else list(text_path)
    if not entries:
        raise DataError(f"{key}: the list is empty; name a file or a pattern")
    found: set[Path] = set()
    for entry in entries:
        try:
            files = _matches(entry, key)
            for file in files:
                file.open("rb").close()
        except OSError as error:
            raise DataError(f"{key}: {entry!r} cannot be read: {error}") from error
        found.update(files)
    return sorted(found)


def _matches(entry: str, key: str) -> list[Path]:
    stdlib = sysconfig.get_path("stdlib")
    entry = expand_path(entry, key)
    path = Path(entry.removeprefix("file://").replace("{stdlib}", stdlib)).absolute()
    if path.is_file():
        return [path]
    if path.is_dir():
        example = f"{entry.rstrip('/')}/**/*.txt"
        raise DataError(f"{key}: {entry!r} is a folder; name files, for instance {example!r}")
    # Only what lies below the last folder that is really there is taken for a pattern: a folder
    # named br[1]x does not match its own name. Path.glob differs between versions of Python.
    folder = next(parent for parent in path.parents if parent.is_dir())
    pattern = str(path.relative_to(folder))
    names = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207
    files = [folder / name for name in names if (folder / name).is_file()]
    if "{stdlib}" in entry:
        files = [file for file in files if not _is_installed(file, stdlib)]
    if not files:
        raise DataError(f"{key}: {entry!r} matches no file (relative paths start at {Path.cwd()})")
    return files


def _is_installed(file: Path, stdlib: str) -> bool:
    return file.is_relative_to(stdlib) and bool(INSTALLED & set(file.relative_to(stdlib).parts))


class TextSource:
    """Cuts the bytes of some files, one after another, into samples of `block_size` tokens.

    Sample i is made of the bytes [i T, i T + T + 1) of the whole; it may straddle files. At most
    `MAX_OPEN_MAPS` files are open at a time. Pickles without its open maps.

    Args:
        files: in the order in which they follow one another; what they hold now is what counts, a
            file that grows later is read up to its size of now.
        block_size: T, tokens in a sample.
        num_tokens: use no more than the first `num_tokens` bytes.
        key: of the configuration, for messages.

    Attributes:
        num_bytes: bytes used of the files together, and so the number of tokens.

    Raises:
        DataError: the files are empty, cannot be read, or hold less than one sample.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        block_size: int,
        num_tokens: int | None = None,
        key: str = "data.text_path",
    ) -> None:
        sizes = [_size_of(file) for file in files]
        # An empty file cannot be mapped, and holds nothing to read.
        self._files = [file for file, size in zip(files, sizes, strict=True) if size]
        self._sizes = [size for size in sizes if size]
        self._starts = np.cumsum([0, *self._sizes])
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()
        self.block_size = block_size
        total_bytes = sum(self._sizes)
        self.num_bytes = total_bytes if num_tokens is None else min(total_bytes, num_tokens)
        if not total_bytes:
            raise DataError(f"{key}: nothing to read: all {len(sizes)} files are empty")
        if len(self) < 1:
            raise DataError(
                f"{key}: {self.num_bytes} bytes of text are less than the "
                f"{block_size + 1} that one sample needs (data.block_size {block_size} + 1); "
                "give more text or lower it"
            )

    def __len__(self) -> int:
        return (self.num_bytes - 1) // self.block_size

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = index * self.block_size
        return as_sample(np.frombuffer(self._read(start, self.block_size + 1), dtype=np.uint8))

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        return stack([self[index] for index in indices])

    def fingerprint(self) -> str:
        """Return a fingerprint of names without folders, sizes and contents, in order."""
        files = [describe_file(file) for file in self._files]
        return fingerprint(kind="text", files=files)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": OrderedDict()}

    def _read(self, start: int, num_bytes: int) -> bytes:
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        while num_bytes:
            offset = start - int(self._starts[number])
            piece = self._map(number)[offset : offset + num_bytes]
            pieces.append(piece)
            start, num_bytes, number = start + len(piece), num_bytes - len(piece), number + 1
        return b"".join(pieces)

    def _map(self, number: int) -> mmap.mmap:
        """Return the open map of file `number`, after checking that all its bytes are there."""
        view = self._maps.pop(number, None)
        if view is None:
            if len(self._maps) >= MAX_OPEN_MAPS:
                self._maps.popitem(last=False)[1].close()
            view = self._open(number)
        # The last one used goes to the end, so that the one unused longest is closed first.
        self._maps[number] = view
        # Reading a page past the end of a file that shrank would end the process by SIGBUS.
        self._check_size(number, view.size())
        return view

    def _open(self, number: int) -> mmap.mmap:
        path = self._files[number]
        try:
            with path.open("rb") as file:
                self._check_size(number, file.seek(0, 2))
                return mmap.mmap(file.fileno(), self._sizes[number], access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"text cannot be read: {path}: {error}") from error

    def _check_size(self, number: int, found_bytes: int) -> None:
        if found_bytes < self._sizes[number]:
            raise DataError(
                f"text file shrank: {self._files[number]}: expected {self._sizes[number]} bytes, "
                f"found {found_bytes}; put the file back as it was, or start a fresh run"
            )


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"text cannot be read: {path}: {error}") from error
