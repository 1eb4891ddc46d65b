"""Files of unknown origin, mutated: reading one ends in an error of ours or in a state, never in a
signal, and within bounds of memory and time.

Each kind of file has a reader that does what the product does with it: a payload of 2.0 is taken up
by a live state, weights are copied into a model. Readers run in a process of their own.
"""

import io
import json
import multiprocessing
import random
import resource
import signal
import tempfile
import zipfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save

from speedtronic.errors import SpeedtronicError
from speedtronic.legacy import payload
from speedtronic.runtime.components import build_components
from speedtronic.runtime.start import read_weights
from speedtronic.training.weights import load_weights
from tests.crafted import zip_file
from tests.legacy.old_runs import FILES, config_for
from tests.robustness.sweeps import Tally

OLD, WEIGHTS, SAFETENSORS = "mutated payload of 2.0", "mutated weights", "mutated safetensors"
KINDS = (OLD, WEIGHTS, SAFETENSORS)

MEMORY_BYTES = 512 * 2**20
TIME_S = 10

Reader = Callable[[bytes], None]

# Pieces of pickles and headers that mean something to a reader.
_TOKENS = [
    *(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"cbuiltins\neval\n", b"cos\nsystem\n"),
    *(b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"c_codecs\nencode\n"),
    *(b"R", b"b", b"Q", b"(", b"t", b"0", b"s", b"u", b"a", b"e", b"}", b"]", b")", b"N", b"."),
    *(b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"r\xff\xff\xff\xff", b"h\x00"),
    *(b"-1", b"1e999", b"9" * 30, b'"F64"', b'"BOOL"', b"[0,0]", b"{}", b"null", b'"__metadata__"'),
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """`content` with one to four things wrong."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        length = min(rng.choice((1, 2, 4, 16, 64)), len(data) - place)
        match rng.randrange(6):
            case 0 if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = data[place : place + length]
            case 3:
                data[place : place + length] = rng.choice(_TOKENS)
            case 4:
                data[place:place] = rng.choice(_TOKENS)
            case _:
                data[place : place + length] = rng.randbytes(length)
    return bytes(data)


def mutations(kind: str) -> Callable[[random.Random], bytes]:
    """What makes a mutated file of `kind`: mostly of what its pickle or its header says."""
    if kind == SAFETENSORS:
        whole = save({name: torch.ones(2, 3) for name in ("weight", "bias", "buffer")})
        size = int.from_bytes(whole[:8], "little")
        header, rest = whole[8 : 8 + size], whole[8 + size :]

        def make(rng: random.Random) -> bytes:
            if rng.random() < 0.2:
                return mutated(whole, rng)
            new = mutated(header, rng)
            return len(new).to_bytes(8, "little") + new + rest

        return make
    whole = (FILES / "tied/checkpoints/step_000000000004.pt").read_bytes()
    if kind == WEIGHTS:
        file = io.BytesIO()
        torch.save({"model": torch.nn.BatchNorm1d(3).state_dict()}, file)
        whole = file.getvalue()
    with zipfile.ZipFile(io.BytesIO(whole)) as source:
        records = {i.filename.partition("/")[2]: source.read(i) for i in source.infolist()}

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return mutated(whole, rng)
        return zip_file({**records, "data.pkl": mutated(records["data.pkl"], rng)})

    return make


def reader(kind: str, folder: Path) -> Reader:
    """What the product does with such a file."""
    if kind == OLD:
        config = config_for("tied", folder / "run")
        live = build_components(config).state

        def take_up(data: bytes) -> None:
            live.load_state_dict(payload.convert(payload.read(data), live, config))

        return take_up
    model = torch.nn.BatchNorm1d(3) if kind == WEIGHTS else torch.nn.Linear(3, 2)
    file = folder / ("file.pt" if kind == WEIGHTS else "file.safetensors")

    def copy(data: bytes) -> None:
        file.write_bytes(data)
        load_weights(model, read_weights(str(file)))

    return copy


def fuzz(tally: Tally, kind: str, count: int, seed: int) -> None:
    """Read `count` mutated files of a kind; a process that dies is started again behind that file.

    Adds to `tally` under the kind.
    """
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < count:
        ours, theirs = context.Pipe()
        process = context.Process(target=_read_all, args=(theirs, kind, seed, done, count))
        process.start()
        theirs.close()
        at = done
        try:
            while done < count:
                at, found = ours.recv()
                tally.note([kind], f"seed {seed}, file {at}", found)
                done = at + 1
        except EOFError:
            process.join()
            tally.note([kind], f"seed {seed}, file {done}", [f"exit code {process.exitcode}"])
            done += 1
        process.join()


def _read_all(results: Connection, kind: str, seed: int, start: int, end: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        read = reader(kind, Path(folder))
        used_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        limit = used_bytes + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        make = mutations(kind)
        for number in range(start, end):
            data = make(random.Random(f"{seed} {number}"))
            signal.alarm(TIME_S)  # kills this process, as a signal of its own making would
            results.send((number, _outcome(read, data)))


def _outcome(read: Reader, data: bytes) -> list[str]:
    """What is wrong with how reading ended; empty for a state, or an error of ours in one line."""
    try:
        read(data)
    except SpeedtronicError as error:
        text = str(error)
        if "MemoryError" in text:
            return [f"took more than {MEMORY_BYTES} bytes: {text}"]
        json.dumps(text).encode()
        return []
    except BaseException as error:
        return [f"{type(error).__name__}: {error}"]
    return []
