"""Local storage: what it lists and opens, what it refuses, and where URLs lead."""

import os
from pathlib import Path

import pytest

from speedtronic.checkpoint.storage import (
    LocalStorage,
    local_path,
    open_storage,
    publish,
    read_bytes,
)
from speedtronic.errors import ConfigError, StorageError, StorageFullError


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("outside")
    (root / "file").write_text("content")
    (root / "folder").mkdir()
    (root / "folder" / "inner").write_text("12345")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to(tmp_path / "missing")
    os.mkfifo(root / "pipe")
    return LocalStorage(root)


def test_lists_regular_files_of_one_folder(storage: LocalStorage) -> None:
    assert storage.list() == ["file"]
    assert storage.list("folder") == ["inner"]
    assert storage.list("missing") == []
    assert storage.size("file") == 7
    with pytest.raises(StorageError, match="cannot list"):
        storage.list("file")


def test_anything_with_a_name_exists(storage: LocalStorage) -> None:
    there = ("file", "folder", "folder/inner", "link", "dangling", "pipe")
    assert all(storage.exists(name) for name in there)
    assert not storage.exists("missing")


@pytest.mark.parametrize("name", ["folder", "link", "dangling", "pipe", "missing"])
def test_opens_nothing_but_regular_files(storage: LocalStorage, name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(StorageError, match=f"cannot read .*{name}"):
        read_bytes(storage, name)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert read_bytes(storage, "file") == b"content"


def test_never_writes_over_a_file(storage: LocalStorage) -> None:
    with pytest.raises(StorageError, match="cannot create"):
        storage.create("file")
    assert read_bytes(storage, "file") == b"content"


def test_deleting_what_is_gone_is_no_error(storage: LocalStorage) -> None:
    storage.delete("link")
    storage.delete("link")
    assert not storage.exists("link")
    assert read_bytes(LocalStorage(Path(storage.root).parent), "outside") == b"outside"


def test_publishing_replaces_the_whole(storage: LocalStorage) -> None:
    assert publish(storage, "file", lambda file: file.write(b"new")) == 3
    assert read_bytes(storage, "file") == b"new"
    assert storage.list() == ["file"]
    assert storage.size("file") == 3


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(5, "Input/output error"), StorageError),
        (OSError(28, "No space left on device"), StorageFullError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_write_changes_nothing(
    storage: LocalStorage, raised: BaseException, expected: type[BaseException]
) -> None:
    def write(file: object) -> None:
        raise raised

    with pytest.raises(expected):
        publish(storage, "file", write)
    assert storage.list() == ["file"]
    assert read_bytes(storage, "file") == b"content"


def test_urls_and_paths_lead_to_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"file://{tmp_path}/a b", f"{tmp_path}/a b", "a b", "./a b/"):
        assert local_path(url) == tmp_path / "a b"
        assert open_storage(url).root == f"{tmp_path}/a b"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["memory://x", "nosuch://x", "http://host/x", "s3://bucket/x"])
def test_a_url_of_elsewhere_is_refused_and_named(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_storage(url)
    assert url in str(refused.value)
