"""Reads a `.pt` file that no manifest describes: a run of Speedtronic 2.0, or foreign weights.

The author of the file may be hostile, so nothing that it names is imported or constructed. Types
of a training state (`untrusted_types`) are built here by value, and every size is checked against
the bytes in the file; any other name is refused. `torch.load(weights_only=True)` is no alternative:
it would need NumPy's constructors allowed, one of which makes an array of addresses that the file
chooses.
"""

import io
import pickle
import pickletools
import zipfile
from typing import Any

from speedtronic.checkpoint.reading import LOCAL_HEADER
from speedtronic.checkpoint.untrusted_types import ALLOWED_GLOBALS, DTYPES, Storage
from speedtronic.errors import CorruptError, StorageError
from speedtronic.machine_errors import is_machine_failure

MAX_PICKLE_BYTES = 256 * 2**20
MAX_VALUES = 10_000_000
MAX_DEPTH = 100

# The opcodes that torch.save writes. None of them names an object without `find_class`.
_OPCODES = {
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS"),
}


def read_untrusted(data: bytes) -> dict[str, Any]:
    """Read the dict in a file that `torch.save` wrote, without executing anything in it.

    Needs at most a few times the size of the file in memory.

    Returns:
        Plain containers, numbers, strings, dense tensors on the CPU, and a `WordArray` for an
        array of NumPy.

    Raises:
        CorruptError: it is no such file, is damaged, or holds anything else; names what.
        StorageError: the machine cannot load it at the moment; it may be good.
    """
    try:
        records = _records(data)
        content = records.get("data.pkl", memoryview(b"")).tobytes()
        _refuse_odd_opcodes(content)
        value = _Unpickler(content, records).load()
        _refuse_too_much(value)
    except CorruptError:
        raise
    except RecursionError:
        raise CorruptError("payload does not load: it is nested too deeply") from None
    except Exception as error:  # pickle and zipfile raise a dozen types for damage
        reason = str(error).splitlines()[0] if str(error) else "unreadable"
        if is_machine_failure(error):
            said = f"{type(error).__name__}: {reason}"
            raise StorageError(f"payload does not load here and now: {said}") from None
        raise CorruptError(f"payload does not load: {type(error).__name__}: {reason}") from None
    if not isinstance(value, dict):
        raise CorruptError(f"payload holds a {type(value).__name__}, expected a dict")
    return value


def _records(data: bytes) -> dict[str, memoryview]:
    """Return the content of each zip record by name, without the common folder name.

    Raises:
        CorruptError: a record is compressed, encrypted or exceeds the file.
    """
    whole, records, total_bytes = memoryview(data), dict[str, memoryview](), 0
    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        name = info.filename.partition("/")[2]
        start = info.header_offset
        start += LOCAL_HEADER.size + sum(LOCAL_HEADER.unpack_from(data, start))
        end = start + info.file_size
        total_bytes += info.file_size
        encoded = info.compress_type or info.flag_bits & 1
        if encoded or end > len(data) or total_bytes > len(data) or name in records:
            raise CorruptError(f"payload does not load: no plain record {info.filename!r}")
        records[name] = whole[start:end]
    if records.get("byteorder", b"little") != b"little":
        raise CorruptError("payload does not load: it is not little-endian")
    return records


def _refuse_odd_opcodes(content: bytes) -> None:
    """Refuse opcodes that torch.save never writes, before anything is built."""
    if len(content) > MAX_PICKLE_BYTES:
        raise CorruptError(
            f"payload does not load: its pickle has {len(content)} bytes, expected at most "
            f"{MAX_PICKLE_BYTES}"
        )
    for count, (opcode, value, _) in enumerate(pickletools.genops(content)):
        argument: Any = value
        if opcode.name not in _OPCODES:
            raise CorruptError(f"payload does not load: it holds the opcode {opcode.name}")
        if opcode.name == "GLOBAL" and argument not in ALLOWED_GLOBALS:
            name = argument.replace(" ", ".", 1)
            raise CorruptError(f"payload needs {name} to load, which a training state does not")
        # The unpickler allocates as many memo entries as this number says.
        if opcode.name == "LONG_BINPUT" and argument > count:
            raise CorruptError("payload does not load: its memo is out of order")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, records: dict[str, memoryview]) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self._records = records

    def find_class(self, module: str, name: str) -> Any:
        return ALLOWED_GLOBALS[f"{module} {name}"]

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, num_values = pid
        if kind != "storage" or dtype not in DTYPES or type(key) is not str:
            raise CorruptError("payload does not load: it refers to something that is no storage")
        content = self._records.get(f"data/{key}")
        if content is None:
            raise CorruptError(f"payload does not load: the record data/{key} is missing")
        return Storage(content, dtype, num_values)


def _refuse_too_much(value: Any) -> None:
    """Refuse cyclic containers, more than `MAX_VALUES` values, and text that is not Unicode."""
    sizes: dict[int, int | None] = {}

    def size(item: Any, depth: int) -> int:
        if isinstance(item, str):
            item.encode()
        if not isinstance(item, dict | list | tuple):
            return 1
        if depth > MAX_DEPTH:
            raise CorruptError("payload does not load: it is nested too deeply")
        if id(item) not in sizes:
            sizes[id(item)] = None
            items = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            sizes[id(item)] = 1 + sum(size(part, depth + 1) for part in items)
        known = sizes[id(item)]
        if known is None or known > MAX_VALUES:
            raise CorruptError("payload does not load: it holds itself, or too many values")
        return known

    size(value, 0)
