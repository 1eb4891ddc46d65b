"""Keeps one writer per run in an object store, by a lease: an object that expires.

The object `.lock` names its holder and how long the lease lasts from when the object was written,
by the store's own clock. The holder renews it in the background and before each commit. Each write
is conditional on the version last seen, so of two processes the store itself refuses one, whatever
their clocks say. Acquiring the lease also tests whether the store supports conditional writes; if
not, the last writer wins, and each process reads the object back to see whether that was itself.
docs/storage.md says what is promised then.
"""

import logging
import math
import threading
import time
from typing import Any

from speedtronic.errors import RunLockedError, StorageError
from speedtronic.storage.lock_record import (
    Record,
    describe_owner,
    from_bytes,
    has_ended,
    lock_lost_error,
    new_record,
    to_bytes,
)
from speedtronic.storage.names import LOCK
from speedtronic.storage.objects import ObjectStorage

LEASE_S = 60.0
"""Longest time for which a holder that died on another machine blocks the run."""
SETTLE_S = 2.0
"""Wait for a concurrent write to finish, in a store without conditional writes."""

logger = logging.getLogger(__name__)


class Lease:
    """The lease of one process on the checkpoints in `storage`, from `acquire` to `release`.

    Args:
        storage: of the run's checkpoints.
        lease_s: how long the lease lasts without renewal, at most `LEASE_S`; it is renewed four
            times in that period.
    """

    def __init__(self, storage: ObjectStorage, *, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._lease_s = lease_s
        self._record: Record = {}
        self._version = ""
        self._conditional = True
        self._lost: Record | None = None
        self._changing = threading.Lock()
        self._released = threading.Event()
        self._renewer: threading.Thread | None = None

    def acquire(self) -> None:
        """Acquire the lease, or fail at once.

        It is free if it has expired, or if its holder was a process of this machine that has ended.

        Raises:
            RunLockedError: another process holds it; the message names host and pid.
            StorageError: the store cannot be read or written.
        """
        content, version = self._storage.read_version(LOCK)
        found = from_bytes(content)
        if remaining_s(self._storage, found) > 0 and not has_ended(found):
            raise self._refusal(found)
        self._record, self._lost = new_record(), None
        taken = self._storage.swap(LOCK, self._content(), version)
        if taken is None:
            raise self._refusal(from_bytes(self._storage.read_version(LOCK)[0]))
        self._version = taken
        self._test_conditional_writes()
        self._storage.abort_unfinished()
        self._released.clear()
        self._renewer = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)
        self._renewer.start()

    def confirm(self) -> None:
        """Renew the lease, and check that this process still holds it.

        Raises:
            RunLockedError: it was taken over or removed; names the present holder.
            StorageError: the store does not answer, so that is unknown.
        """
        with self._changing:
            if self._lost is None:
                self._renew(self._content())
            if self._lost is not None:
                raise lock_lost_error(self._storage.root, self._lost)

    def release(self) -> None:
        """Release the lease if this process still holds it; the object stays."""
        self._released.set()
        if self._renewer is None:
            return
        self._renewer.join()
        self._renewer = None
        with self._changing:
            try:
                if self._lost is None:
                    self._renew(to_bytes(self._record | {"lease_s": 0.0, "expires_at": 0.0}))
            except StorageError as error:
                logger.warning("%s; the lease ends in %.0f s", error, self._lease_s)

    def _renew(self, content: bytes) -> None:
        """Write the lease again, or note that it is lost."""
        if not self._conditional and self._read_back() is None:
            return
        renewed = self._storage.swap(LOCK, content, self._version)
        # A request is repeated if its answer was lost; the first one makes the second one fail.
        renewed = renewed or self._read_back()
        if renewed is not None:
            self._version = renewed

    def _read_back(self) -> str | None:
        """Return the version of the lease if it is ours; otherwise note that it is lost."""
        content, version = self._storage.read_version(LOCK)
        found = from_bytes(content)
        if found.get("token") == self._record["token"]:
            self._version = version
            return version
        self._lost = found
        return None

    def _test_conditional_writes(self) -> None:
        again = self._storage.swap(LOCK, self._content(), "")
        if again is None:  # refused, as it should be: the object exists
            return
        self._conditional, self._version = False, again
        logger.warning(
            "%s: this store knows no conditional writes, so two processes that start within %.0f s "
            "of each other may both go on for a moment; see docs/storage.md",
            self._storage.root,
            SETTLE_S,
        )
        self._released.wait(SETTLE_S)
        if self._read_back() is None:
            raise self._refusal(self._lost or {})

    def _keep_renewing(self) -> None:
        failing = False
        while not self._released.wait(self._lease_s / 4):
            with self._changing:
                try:
                    if self._lost is None:
                        self._renew(self._content())
                    failing = False
                except StorageError as error:
                    if not failing:
                        logger.warning("the lease was not renewed, going on trying: %s", error)
                    failing = True
                if self._lost is not None:
                    logger.error("%s", lock_lost_error(self._storage.root, self._lost))
                    return

    def _content(self) -> bytes:
        # `expires_at` is for people, and for versions before this one.
        expires_at = time.time() + self._lease_s
        return to_bytes(self._record | {"lease_s": self._lease_s, "expires_at": expires_at})

    def _refusal(self, found: Record) -> RunLockedError:
        seconds = max(remaining_s(self._storage, found), 0.0)
        return RunLockedError(
            f"{self._storage.root} is being trained by {describe_owner(found)}; wait for it to "
            f"end, or stop it. If it is gone, its lease ends in {seconds:.0f} s"
        )


def remaining_s(storage: ObjectStorage, record: Record) -> float:
    """Return the seconds until the lease `record` ends, at most `LEASE_S`; 0 if it is no lease.

    Both times come from the store's clock, so the clocks of the holder and this machine are
    irrelevant.

    Raises:
        StorageError: the store does not answer.
    """
    if not _is_number(record.get("expires_at")):
        return 0.0
    given_s = record.get("lease_s", LEASE_S)
    if not _is_number(given_s) or given_s <= 0:
        return 0.0
    return float(min(given_s, LEASE_S) - storage.age_s(LOCK))


def _is_number(value: Any) -> bool:
    return type(value) in (float, int) and math.isfinite(value)
