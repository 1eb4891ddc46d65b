"""Reads and writes the two JSON records of a checkpoint: manifest and pointer.

The manifest commits a payload, the pointer names the newest one. The bytes of a record are a
function of its fields, and reading accepts exactly those bytes, so a flipped bit anywhere, even in
white space, is noticed. The field `checksum` (xxh3-128 of the canonical JSON of the other fields)
lets a reader in another language check the same.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speedtronic.checkpoint import layout
from speedtronic.errors import CorruptError, UnsupportedFormatError

FORMAT_VERSION = 1

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Step = Annotated[int, Field(ge=0, le=layout.MAX_STEP)]
Digest = Annotated[str, Field(pattern=r"^xxh3_128:[0-9a-f]{32}$")]
StateDigest = Annotated[str, Field(pattern=r"^state1:[0-9a-f]{32}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9a-z-]{1,64}$")]


class Record(BaseModel):
    """Base of records: frozen, strictly typed fields with exactly one byte representation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    kind: ClassVar[str]

    def to_bytes(self) -> bytes:
        """Return the content of the file: indented JSON with the checksum last."""
        fields = self.model_dump(exclude_unset=True)  # so that old records keep their bytes
        fields["checksum"] = xxhash.xxh3_128_hexdigest(canonical_json(fields))
        return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` returned.

        Raises:
            CorruptError: `data` is anything else; the message says what is wrong.
            UnsupportedFormatError: the record is intact, but a newer version of this program wrote
                it.
        """
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{cls.kind} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise CorruptError(f"{cls.kind} is not a JSON object")
        _refuse_newer(cls.kind, fields)
        fields.pop("checksum", None)
        try:
            record = cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CorruptError(f"{cls.kind} is damaged: {where}: {first['msg']}") from None
        if record.to_bytes() != data:
            raise CorruptError(f"{cls.kind} is damaged: its checksum does not match its content")
        return record


class Pointer(Record):
    """Names the newest committed checkpoint of a run; small enough to pass between tasks."""

    kind: ClassVar[str] = "pointer"

    step: Step
    file: str
    digest: Digest
    state_digest: StateDigest
    run_id: RunId
    samples: Count
    tokens: Count


class FileEntry(BaseModel):
    """Describes one file of a payload."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    size_bytes: Count
    digest: Digest


class Manifest(Record):
    """Describes one checkpoint, so that its payload need not be opened."""

    kind: ClassVar[str] = "manifest"

    format_version: int
    run_id: RunId
    step: Step
    samples: Count
    tokens: Count
    skipped_updates: Count
    loss: float | None
    files: list[FileEntry]
    state_digest: StateDigest
    config_fingerprint: str
    created_at: str
    # These were added later, so they are missing in older manifests.
    val_loss: float | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    history: list[dict[str, Any]] = Field(default_factory=list)

    @classmethod
    def of(
        cls,
        content: Mapping[str, Any],
        payload: FileEntry,
        *,
        state_digest: str,
        config_fingerprint: str,
    ) -> Self:
        """Return the manifest for the state `content`, just written as the file `payload`."""
        validated = content.get("validated_at") == content["step"]
        return cls(
            format_version=FORMAT_VERSION,
            run_id=content["run_id"],
            step=content["step"],
            samples=content["samples"],
            tokens=content["tokens"],
            skipped_updates=content["skipped_updates"],
            loss=content["loss"],
            files=[payload],
            state_digest=state_digest,
            config_fingerprint=config_fingerprint,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            val_loss=content.get("val_loss") if validated else None,
            environment=content.get("environment", {}),
            history=content.get("history", []),
        )

    @property
    def payload(self) -> FileEntry:
        """The one file of the payload."""
        return self.files[0]

    def pointer(self) -> Pointer:
        """Return the pointer to this checkpoint."""
        return Pointer(
            step=self.step,
            file=self.payload.name,
            digest=self.payload.digest,
            state_digest=self.state_digest,
            run_id=self.run_id,
            samples=self.samples,
            tokens=self.tokens,
        )

    @classmethod
    def from_file(cls, data: bytes, step: int) -> Self:
        """Parse the manifest of `step`, which must describe exactly the payload of that step.

        Raises:
            CorruptError: it is damaged, or describes something else.
        """
        manifest = cls.from_bytes(data)
        names = [entry.name for entry in manifest.files]
        if manifest.step != step or names != [layout.payload_name(step)]:
            raise CorruptError(f"manifest speaks of step {manifest.step}, files {names}")
        return manifest


def _refuse_newer(kind: str, fields: dict[str, Any]) -> None:
    """Refuse an intact record of a newer version: its checksum holds, its fields are unknown."""
    version = fields.get("format_version")
    if type(version) is not int or version <= FORMAT_VERSION:
        return
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    if xxhash.xxh3_128_hexdigest(canonical_json(rest)) == fields.get("checksum"):
        raise UnsupportedFormatError(
            f"{kind} has format version {version}; this program reads up to {FORMAT_VERSION}: "
            "update speedtronic-flows"
        )


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no white space, over which checksums are taken."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
