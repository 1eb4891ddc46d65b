"""Object storage whose requests go wrong: the real `ObjectStorage` and `S3Storage`, with the fault
between them and their client, where a network has it.

An object is there whole or not at all, and for good once its request was answered, so there is no
power loss here. What a network adds is the answer that is lost: the request had its effect, and its
sender is told that it failed; or its client sends it again by itself and is told of the second.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

from fsspec import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from speedtronic.storage.objects import ObjectStorage
from speedtronic.storage.s3 import S3Storage
from tests.robustness.failpoints import KILLED_AFTER, KILLED_BEFORE, Killed

FAILED, ANSWER_LOST, SENT_TWICE = "failed", "answer lost", "sent twice"
CHANGES = frozenset({"pipe_file", "cp_file", "rm_file"})
READS = frozenset({"ls", "info", "cat_file"})
OF_S3 = frozenset({"open", "call_s3"})  # reads that only it sends
AT_REQUEST = {
    KILLED_BEFORE: READS | OF_S3 | CHANGES,
    KILLED_AFTER: READS | OF_S3 | CHANGES,
    FAILED: READS | OF_S3 | CHANGES,
    ANSWER_LOST: CHANGES,
    SENT_TWICE: CHANGES,
}


class Requests:
    """A filesystem of fsspec, one of whose requests can go wrong.

    Attributes:
        verbs: of each request so far.
        fired: which one went wrong, in words; empty until one did.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._fault, self._left = "", -1
        self._dead = False
        self.verbs: list[str] = []
        self.fired = ""

    def arm(self, number: int, fault: str) -> None:
        """Let `fault` happen once, at request `number` of those at which it can happen."""
        self._fault, self._left = fault, number

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._filesystem, name)
        return partial(self._request, name, found) if name in AT_REQUEST[FAILED] else found

    def _request(self, verb: str, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._dead:
            raise Killed
        self.verbs.append(verb)
        fault = self._fault if self._fires(verb) else ""
        if fault == KILLED_BEFORE:
            self._die()
        if fault == FAILED:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        answer = send(*args, **options)
        if fault == KILLED_AFTER:
            self._die()
        if fault == ANSWER_LOST:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return send(*args, **options) if fault == SENT_TWICE else answer

    def _fires(self, verb: str) -> bool:
        if verb not in AT_REQUEST.get(self._fault, ()) or self._left < 0:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self.fired = f"request {verb}"
        return True

    def _die(self) -> None:
        self._dead = True
        raise Killed


class _Faulty(ObjectStorage):
    """What a sweep asks of a `Disk` and of its `Failpoints`, of objects."""

    faults = tuple(AT_REQUEST)
    _filesystem: Requests

    def failpoints(self) -> Self:
        return self

    def arm(self, number: int, fault: str) -> None:
        self._filesystem.arm(number, fault)

    @property
    def operations(self) -> list[str]:
        return self._filesystem.verbs

    @property
    def fired(self) -> str:
        return self._filesystem.fired

    def image(self) -> dict[str, bytes]:
        """Every name with its bytes."""
        objects = self._filesystem._filesystem
        paths = objects.find(self._folder)
        return {path.removeprefix(f"{self._folder}/"): objects.cat_file(path) for path in paths}

    def content(self, name: str) -> bytes:
        return self.image()[name]

    def damage(self, name: str, content: bytes) -> None:
        self._filesystem._filesystem.pipe_file(self._key(name), content)

    def killed(self) -> Self:
        """What the next process finds when this one was killed."""
        copy = type(self)()
        for name, content in self.image().items():
            copy.damage(name, content)
        return copy

    def power_losses(self, bound: int, rng: random.Random) -> Iterator[tuple[frozenset[str], Self]]:
        """Nothing: what was answered is durable."""
        yield from ()


class Bucket(_Faulty):
    """Objects in memory, of this one storage."""

    def __init__(self) -> None:
        objects = MemoryFileSystem(skip_instance_cache=True)
        objects.store, objects.pseudo_dirs = {}, [""]  # else all of the process share them
        super().__init__(Requests(objects), "/run", "memory://run")


class S3Bucket(_Faulty, S3Storage):
    """Objects under a prefix of their own on the tests' S3 server, which must be running."""

    _number = itertools.count()

    def __init__(self) -> None:
        url = f"s3://bucket/sweep-{next(self._number)}"
        objects, path = url_to_fs(url, use_listings_cache=False)
        super().__init__(Requests(objects), path, url)
