import os
import pickle
import sysconfig
from pathlib import Path

import pytest
import torch

from speedtronic.data import TextSource, find_files
from speedtronic.data.text import MAX_OPEN_MAPS
from speedtronic.errors import DataError

MIB = 2**20


def write(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(root: Path, files: list[Path]) -> list[str]:
    return [str(file.relative_to(root)) for file in files]


ODD_NAMES = [
    "plain.txt",
    "with space.txt",
    "ünï→.txt",
    "a[1].txt",
    "b*.txt",
    "what?.txt",
    "{x}.txt",
]


class TestFindFiles:
    @pytest.mark.parametrize("prefix", ["", "file://"])
    @pytest.mark.parametrize("folder", ["d", "br[1]x", "with space", "*"])
    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_an_existing_file_is_meant_literally(
        self, tmp_path: Path, folder: str, name: str, prefix: str
    ) -> None:
        wanted = write(tmp_path / folder / name)
        for decoy in ("a1.txt", "bb.txt", "whats.txt"):
            write(tmp_path / folder / decoy)
        assert find_files(f"{prefix}{wanted}") == [wanted]

    @pytest.mark.parametrize("folder", ["d", "br[1]x", "with space", "ü*", "[!a]"])
    def test_a_pattern_below_any_folder(self, tmp_path: Path, folder: str) -> None:
        for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", "sub/e.md"):
            write(tmp_path / folder / name)
        root = tmp_path / folder
        assert names(root, find_files(f"{root}/*.txt")) == ["a.txt", "b.txt"]
        assert names(root, find_files(f"{root}/**/*.txt")) == [
            "a.txt",
            "b.txt",
            "sub/c.txt",
            "sub/deep/d.txt",
        ]
        assert names(root, find_files(f"{root}/s?b/[a-d].txt")) == ["sub/c.txt"]

    def test_folders_that_match_are_not_files(self, tmp_path: Path) -> None:
        write(tmp_path / "a.txt")
        (tmp_path / "folder.txt").mkdir()
        assert find_files(f"{tmp_path}/*.txt") == [tmp_path / "a.txt"]

    def test_several_entries_come_sorted_and_once(self, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt", "c.md"):
            write(tmp_path / name)
        entries = [f"{tmp_path}/c.md", f"{tmp_path}/*.txt", f"file://{tmp_path}/a.txt"]
        assert names(tmp_path, find_files(entries)) == ["a.txt", "b.txt", "c.md"]
        assert find_files(tuple(reversed(entries))) == find_files(entries)

    def test_relative_paths_start_at_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "br[1]x" / "a.txt")
        monkeypatch.chdir(tmp_path)
        assert find_files("br[1]x/*.txt") == [tmp_path / "br[1]x" / "a.txt"]
        assert find_files("br[1]x/a.txt") == [tmp_path / "br[1]x" / "a.txt"]

    def test_stdlib_is_this_pythons_own_without_installed_packages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("ast.py", "json/decoder.py", "site-packages/x/y.py", "dist-packages/z.py"):
            write(tmp_path / "py[3]" / name)
        monkeypatch.setattr(sysconfig, "get_path", {"stdlib": f"{tmp_path}/py[3]"}.get)
        found = names(tmp_path / "py[3]", find_files("{stdlib}/**/*.py"))
        assert found == ["ast.py", "json/decoder.py"]
        # Outside the standard library the names mean nothing.
        mine = write(tmp_path / "site-packages" / "mine.py")
        assert find_files(f"{tmp_path}/site-packages/*.py") == [mine]

    def test_stdlib_for_real(self) -> None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        assert find_files("{stdlib}/ast.py") == [stdlib / "ast.py"]
        assert stdlib / "json" / "decoder.py" in find_files("{stdlib}/json/*.py")

    @pytest.mark.parametrize("name", ["missing.txt", "*.txt", "no/such/folder/*.txt"])
    def test_nothing_found_is_refused_in_one_line(self, tmp_path: Path, name: str) -> None:
        write(tmp_path / "other.md")
        with pytest.raises(DataError) as caught:
            find_files([f"{tmp_path}/other.md", f"{tmp_path}/{name}"])
        assert str(caught.value).startswith(f"data.text_path: '{tmp_path}/{name}' matches no file")
        assert "\n" not in str(caught.value)

    def test_a_folder_is_refused_with_a_pattern_to_use(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"^data\.text_path: .* is a folder; .*\*\*/\*\.txt"):
            find_files(f"{tmp_path}/")

    def test_an_empty_list_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"data\.text_path: the list is empty"):
            find_files([])

    def test_an_unreadable_file_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "a.txt")

        def refuse(self: Path, *_: object) -> None:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "open", refuse)  # root may read whatever its mode is
        with pytest.raises(
            DataError, match=r"data\.text_path: .*\*\.txt.* cannot be read: .*a\.txt"
        ):
            find_files(f"{tmp_path}/*.txt")


def tokens_of(source: TextSource) -> list[tuple[bytes, bytes]]:
    samples = [source[index] for index in range(len(source))]
    return [(bytes(s["input_ids"].tolist()), bytes(s["labels"].tolist())) for s in samples]


def split(text: bytes, size: int) -> list[tuple[bytes, bytes]]:
    starts = range(0, (len(text) - 1) // size * size, size)
    return [(text[s : s + size], text[s + 1 : s + size + 1]) for s in starts]


class TestTextSource:
    @pytest.mark.parametrize("block_size", [1, 2, 3, 7, 10, 200])
    @pytest.mark.parametrize("sizes", [[256], [3, 0, 1, 0, 250], [1] * 210, [0, 0, 205, 0]])
    def test_samples_are_the_text_of_all_files(
        self, tmp_path: Path, sizes: list[int], block_size: int
    ) -> None:
        text = bytes(range(256))[: sum(sizes)]
        files, start = [], 0
        for number, size in enumerate(sizes):
            files.append(write(tmp_path / f"{number:03}", text[start : start + size]))
            start += size
        source = TextSource(files, block_size=block_size)
        assert source.num_bytes == len(text)
        assert tokens_of(source) == split(text, block_size)

    def test_samples_are_int64(self, tmp_path: Path) -> None:
        source = TextSource([write(tmp_path / "a", bytes([0, 127, 128, 255]))], block_size=3)
        sample = source[0]
        assert sample["input_ids"].dtype == sample["labels"].dtype == torch.int64
        assert sample["input_ids"].tolist() == [0, 127, 128]
        assert sample["labels"].tolist() == [127, 128, 255]

    def test_several_at_once_come_in_the_order_asked(self, tmp_path: Path) -> None:
        source = TextSource([write(tmp_path / "a", bytes(range(21)))], block_size=5)
        batch = source.batch([3, 0, 3], [0, 0, 1])
        assert batch["input_ids"][:, 0].tolist() == [15, 0, 15]
        assert {name: tuple(x.shape) for name, x in batch.items()} == {
            "input_ids": (3, 5),
            "labels": (3, 5),
        }

    @pytest.mark.parametrize(
        ("num_tokens", "num_bytes", "length"),
        [(None, 30, 2), (1000, 30, 2), (21, 21, 2), (20, 20, 1)],
    )
    def test_num_tokens_caps_the_text(
        self, tmp_path: Path, num_tokens: int | None, num_bytes: int, length: int
    ) -> None:
        files = [write(tmp_path / name, bytes(15)) for name in "ab"]
        source = TextSource(files, block_size=10, num_tokens=num_tokens)
        assert (source.num_bytes, len(source)) == (num_bytes, length)
        assert source[length - 1]["labels"].shape == (10,)
        for index in (-1, length):
            with pytest.raises(IndexError):
                source[index]

    def test_more_files_than_may_be_open(self, tmp_path: Path) -> None:
        text = os.urandom(3 * (2 * MAX_OPEN_MAPS + 5))
        files = [
            write(tmp_path / f"{number:04}", text[3 * number : 3 * number + 3])
            for number in range(len(text) // 3)
        ]
        before = num_open_files()
        source = TextSource(files, block_size=2)
        assert num_open_files() == before
        assert tokens_of(source) == split(text, 2)
        assert num_open_files() - before == MAX_OPEN_MAPS
        assert tokens_of(source) == split(text, 2)  # closed maps are opened again

    def test_the_map_unused_longest_is_closed(self, tmp_path: Path) -> None:
        files = [write(tmp_path / f"{n:04}", bytes(2)) for n in range(MAX_OPEN_MAPS + 2)]
        source = TextSource(files, block_size=1)
        for number in range(MAX_OPEN_MAPS):
            source._map(number)
        kept = source._map(0)
        source._map(MAX_OPEN_MAPS)
        assert not kept.closed
        assert list(source._maps)[:2] == [2, 3]

    def test_a_huge_file_is_not_loaded(self, tmp_path: Path) -> None:
        path = tmp_path / "sparse"
        with path.open("wb") as file:
            file.truncate(1024 * MIB)
            file.seek(-4, os.SEEK_END)
            file.write(b"last")
        before = resident_bytes()
        source = TextSource([path], block_size=1023)
        assert source.num_bytes == 1024 * MIB
        for index in range(0, len(source) - 1, len(source) // 100):
            assert int(source[index]["input_ids"].sum()) == 0
        assert source._read(1024 * MIB - 4, 4) == b"last"
        assert resident_bytes() - before < 64 * MIB

    def test_pickles_without_open_maps(self, tmp_path: Path) -> None:
        source = TextSource([write(tmp_path / "a", bytes(range(50)))], block_size=5)
        expected = tokens_of(source)
        copy = pickle.loads(pickle.dumps(source))
        assert not copy._maps
        assert source._maps
        assert tokens_of(copy) == expected

    def test_a_file_that_grows_changes_nothing(self, tmp_path: Path) -> None:
        files = [write(tmp_path / "a", b"0123456789"), write(tmp_path / "b", b"abcdef")]
        source = TextSource(files, block_size=5)
        with files[0].open("ab") as file:
            file.write(b"more")
        assert tokens_of(source) == split(b"0123456789abcdef", 5)

    @pytest.mark.parametrize("mapped", [False, True])
    @pytest.mark.parametrize("left", [0, 10])
    def test_a_file_that_shrank_is_an_error_that_names_it(
        self, tmp_path: Path, mapped: bool, left: int
    ) -> None:
        path = write(tmp_path / "a", bytes(100_000))
        source = TextSource([path], block_size=5)
        if mapped:
            source[0]
        os.truncate(path, left)
        with pytest.raises(DataError) as caught:
            source[len(source) - 1]
        assert f"{path}: expected 100000 bytes, found {left};" in str(caught.value)

    def test_a_file_that_vanished_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", bytes(100))
        source = TextSource([path], block_size=5)
        path.unlink()
        with pytest.raises(DataError, match=r"cannot be read: .*/a: .*No such file"):
            source[0]
        with pytest.raises(DataError, match=r"cannot be read: .*/a: .*No such file"):
            TextSource([path], block_size=5)

    def test_empty_files_alone_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"data\.text_path: .* all 2 files are empty"):
            TextSource([write(tmp_path / name, b"") for name in "ab"], block_size=5)

    @pytest.mark.parametrize(("size", "num_tokens"), [(5, None), (100, 5)])
    def test_text_shorter_than_a_sample_is_refused_with_both_numbers(
        self, tmp_path: Path, size: int, num_tokens: int | None
    ) -> None:
        path = write(tmp_path / "a", bytes(size))
        with pytest.raises(DataError, match=r"5 bytes of text are less than the 6 .*block_size 5"):
            TextSource([path], block_size=5, num_tokens=num_tokens)
        assert len(TextSource([write(path, bytes(6))], block_size=5)) == 1


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
