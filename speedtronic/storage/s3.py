"""Implements `Storage` in S3 and compatible stores, with s3fs (the extra `s3`)."""

import io
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, cast

from speedtronic.storage.objects import ObjectStorage


class S3Storage(ObjectStorage):
    """Objects in a bucket of S3 or of a compatible store."""

    def open(self, name: str) -> BinaryIO:
        with self._errors("read", name):
            file = self._filesystem.open(self._key(name), "rb")
        return cast(BinaryIO, _Download(self, name, file))

    def version(self, name: str) -> str:
        head = self._head(name)
        return str(head["ETag"]) if head else ""

    def age_s(self, name: str) -> float:
        head = self._head(name)
        if not head:
            return 0.0
        now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        return float((now - head["LastModified"]).total_seconds())

    def _head(self, name: str) -> dict[str, Any]:
        """Return the response to a HEAD request for an object; empty if it does not exist."""
        bucket, key, _ = self._filesystem.split_path(self._key(name))
        with self._errors("read", name):
            try:
                return dict(self._filesystem.call_s3("head_object", Bucket=bucket, Key=key))
            except FileNotFoundError:
                return {}

    def read_version(self, name: str) -> tuple[bytes, str]:
        version = self.version(name)
        with self._errors("read", name):
            try:
                return self._filesystem.cat_file(self._key(name)), version
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return b"", ""

    def swap(self, name: str, content: bytes, version: str) -> str | None:
        with self._errors("write", name):
            try:
                answer = self._filesystem.pipe_file(self._key(name), content, **_condition(version))
            except OSError as error:
                code = _code(error)
                if code in _NOT_MET:
                    return None
                if code not in _NO_CONDITIONS:
                    raise
                answer = self._filesystem.pipe_file(self._key(name), content)
            return str(answer["ETag"])

    def abort_unfinished(self) -> None:
        # Only keys below our prefix are ours. Without leave to list uploads nothing is aborted.
        with suppress(Exception):
            bucket, prefix, _ = self._filesystem.split_path(self._key(""))
            for upload in self._filesystem.list_multipart_uploads(bucket):
                if upload["Key"].startswith(prefix):
                    self._filesystem.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def begin_parts(self, name: str) -> Any:
        return self._filesystem.open(self._key(name), "wb", autocommit=False)

    def complete_parts(self, name: str, parts: Any, version: str) -> None:
        parts.close()  # uploads the last part
        parts.s3_additional_kwargs = parts.s3_additional_kwargs | _condition(version)
        try:
            parts.commit()
        except OSError as error:
            if _code(error) in _NOT_MET:
                raise self._written_since(name) from error
            if _code(error) not in _NO_CONDITIONS:
                raise
            parts.s3_additional_kwargs = {}
            parts.commit()


def _condition(version: str) -> dict[str, str]:
    return {"IfMatch": version} if version else {"IfNoneMatch": "*"}


# NoSuchKey is the answer if the object of the condition was deleted meanwhile.
_NOT_MET = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", "NoSuchKey")
_NO_CONDITIONS = ("NotImplemented", "501")


def _code(error: BaseException) -> str:
    """Return the server's code of an error; empty if it did not come from the server."""
    response = getattr(error.__cause__, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


class _Download(io.BufferedIOBase):
    """An object being read, all of it of one version; every error is a StorageError."""

    def __init__(self, storage: ObjectStorage, name: str, file: Any) -> None:
        super().__init__()
        self.name = name
        self._storage = storage
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with self._storage._errors("read", self.name):
            return cast(bytes, self._file.read(-1 if size is None else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()
