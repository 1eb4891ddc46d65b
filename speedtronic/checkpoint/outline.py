"""Reads the plain values at the top level of a payload, without its tensors.

A payload is a zip file with one small pickle, which refers to the tensors. The pickle is not loaded
here: its opcodes are walked, and only strings, numbers and the dict around them are built, so that
a file cannot demand time or memory. At most `MAX_BYTES` of a file are read.
"""

import pickletools
import zipfile
from typing import Any, BinaryIO, cast

from speedtronic.errors import CorruptError, StorageError
from speedtronic.machine_errors import is_machine_failure
from speedtronic.storage.base import Storage

MAX_BYTES = 16 * 2**20
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PLAIN = (
    pickletools.pyunicode,
    pickletools.pyint,
    pickletools.pyinteger_or_bool,
    pickletools.pyfloat,
)
_OPAQUE = object()


def read_outline(storage: Storage, name: str) -> dict[str, Any]:
    """Return the strings, numbers and None at the top level of an unverified payload.

    Raises:
        CorruptError: it is not a dict as `torch.save` writes it.
        StorageError: it cannot be read.
    """
    with storage.open(name) as file:
        try:
            return _Walk().through(_pickle_of(_Bounded(file)))
        except (CorruptError, StorageError):
            raise
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{name}: {error.strerror}") from error
        except Exception as error:  # zipfile and pickletools raise a dozen types
            if is_machine_failure(error):
                path = f"{storage.root}/{name}"
                raise StorageError(f"cannot read {path} here and now: {error}") from error
            raise CorruptError(f"payload does not load: {error}") from None


class _Bounded:
    """A file of which at most `MAX_BYTES` can be read in all."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MAX_BYTES
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        content = self._file.read(wanted)
        self._left -= len(content)
        if self._left < 0:
            raise CorruptError(f"payload is no checkpoint: {MAX_BYTES} bytes hold no pickle of one")
        return content


def _pickle_of(file: _Bounded) -> bytes:
    archive = zipfile.ZipFile(cast(BinaryIO, file))
    [record] = [x for x in archive.infolist() if x.filename.rpartition("/")[2] == "data.pkl"]
    if record.compress_type != zipfile.ZIP_STORED or record.file_size > MAX_BYTES:
        raise CorruptError("payload is no checkpoint: its pickle is compressed, or too large")
    del record.CRC  # our own payloads have no valid CRC
    with archive.open(record) as opened:
        return opened.read(record.file_size)


class _Walk:
    """Walks a pickle and builds only strings, numbers and the dict around them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def through(self, pickled: bytes) -> dict[str, Any]:
        """Return the pickled dict."""
        for opcode, argument, _ in pickletools.genops(pickled):
            self._step(opcode, argument)
        [state] = self._stack
        if not isinstance(state, dict):
            raise CorruptError("payload holds no dict")
        return state

    def _step(self, opcode: Any, argument: Any) -> None:
        name, stack, memo = opcode.name, self._stack, self._memo
        if name == "MARK":
            self._marks.append(len(stack))
        elif name == "MEMOIZE" or "PUT" in name:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif "GET" in name:
            stack.append(memo[argument])
        elif name in ("SETITEM", "SETITEMS"):
            target, *items = self._popped(opcode.stack_before)
            if isinstance(target, dict):
                pairs = zip(items[::2], items[1::2], strict=True)
                target.update((k, v) for k, v in pairs if isinstance(k, str) and v is not _OPAQUE)
            stack.append(target)
        elif name != "STOP":
            self._popped(opcode.stack_before)
            stack.extend(_made(kind, name, argument) for kind in opcode.stack_after)

    def _popped(self, before: list[Any]) -> list[Any]:
        """Pop the operands of an opcode; everything above the last mark if it takes that."""
        count = len(before)
        if pickletools.markobject in before:
            count = before.index(pickletools.markobject) + len(self._stack) - self._marks.pop()
        if not 0 <= count <= len(self._stack):
            raise CorruptError("payload is no pickle")
        start = len(self._stack) - count
        taken = self._stack[start:]
        del self._stack[start:]
        return taken


def _made(kind: Any, name: str, argument: Any) -> Any:
    if name == "EMPTY_DICT":
        return {}
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    return argument if kind in _PLAIN else _OPAQUE
