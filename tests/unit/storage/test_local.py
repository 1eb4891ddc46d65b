"""Local storage: what it lists and opens, what it refuses, and where URLs lead."""

import os
from pathlib import Path

import pytest

from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.errors import ConfigError, RunLockedError, StorageError, StorageFullError
from speedtronic.storage.base import publish, read_bytes
from speedtronic.storage.local import LocalStorage
from speedtronic.storage.urls import local_path, open_storage
from tests.unit.checkpoint.states import open_store, state_at


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


@pytest.mark.parametrize("url", ["nosuch://x", "http://host/x", "simplecache::s3://bucket/x"])
def test_a_url_of_elsewhere_is_refused_and_named(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_storage(url)
    assert url in str(refused.value)


@pytest.mark.parametrize("scheme", ["s3", "gopher", "https"])
def test_credentials_in_a_url_are_not_repeated(scheme: str) -> None:
    for refuse in (open_storage, local_path):
        with pytest.raises(ConfigError) as refused:
            refuse(f"{scheme}://key:hunter2@host/x")
        assert "hunter2" not in str(refused.value)
        assert f"{scheme}://***@host/x" in str(refused.value)


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def url_to_fs(url: str, **options: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("speedtronic.storage.urls.url_to_fs", url_to_fs)
    with pytest.raises(ConfigError, match=r"pip install 'speedtronic-flows\[s3\]'"):
        open_storage("s3://bucket/x")


def test_a_folder_that_is_a_link_is_refused_and_nothing_goes_through_it(
    storage: LocalStorage, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "a").write_text("precious")
    (Path(storage.root) / "quarantine").symlink_to(outside)
    for act in (
        lambda: storage.make_folder("quarantine"),
        lambda: storage.list("quarantine"),
        lambda: storage.open("quarantine/a"),
        lambda: storage.size("quarantine/a"),
        lambda: storage.create("quarantine/b"),
        lambda: storage.delete("quarantine/a"),
        lambda: storage.rename("file", "quarantine/a"),
        lambda: storage.rename("quarantine/a", "file"),
        lambda: storage.sync_folder("quarantine"),
        lambda: quarantine(storage, ["file"], "no good"),
    ):
        with pytest.raises(StorageError, match=r"/quarantine is a link"):
            act()
    assert [path.name for path in outside.iterdir()] == ["a"]
    assert (outside / "a").read_text() == "precious"
    assert storage.list() == ["file"]


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path, umask: int, mode: int) -> None:
    former = os.umask(umask)
    try:
        store = open_store(tmp_path / "run")
        for step in (2, 4):
            store.save(state_at(step))
        payload = tmp_path / "run" / "step_000000000004.pt"
        payload.write_bytes(payload.read_bytes()[:-1])
        open_store(tmp_path / "run").select()
    finally:
        os.umask(former)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) == 7
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_who_removed_a_temporary_is_named_and_not_the_rename(storage: LocalStorage) -> None:
    """A writer that was stopped between its last look at the lock and the rename."""
    looks = []

    def fence() -> None:
        looks.append(1)
        if len(looks) == 1:
            for name in storage.list():
                if name.startswith("."):
                    storage.delete(name)
        else:
            raise RunLockedError("is held by pid 7 on there now")

    with pytest.raises(RunLockedError, match="pid 7"):
        publish(storage, "a", lambda file: file.write(b"x"), fence=fence)
