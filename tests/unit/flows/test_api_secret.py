"""The file with the server's secret: made once, for its owner only, never trusted when changed."""

import os
from pathlib import Path

import pytest

from speedtronic.errors import OutputDirError
from speedtronic.flows.api_secret import NAME, auth_string


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    home = tmp_path / "not" / "there yet"
    mask = os.umask(0)
    try:
        secret = auth_string(home)
    finally:
        os.umask(mask)
    found = (home / NAME).lstat()
    assert (found.st_mode & 0o777, len(secret) >= 32) == (0o600, True)
    assert auth_string(home) == secret
    assert auth_string(tmp_path / "another") != secret


def break_as(how: str, path: Path) -> None:
    if how == "is a link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif how == "a dangling link":
        path.unlink()
        path.symlink_to("nowhere")
    elif how == "is no regular file":
        path.unlink()
        os.mkfifo(path)
    elif how == "could be read by others":
        path.chmod(0o640)
    elif how == "is empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(how.encode("latin-1"))


@pytest.mark.parametrize(
    "how",
    [
        "is a link",
        "a dangling link",
        "is no regular file",
        "could be read by others",
        "is empty",
        "\0" * 44,
        "short",
        "x" * 43 + "\n" + "y" * 43,
        "\xff" * 43,
    ],
)
def test_one_that_is_not_as_it_was_made_is_replaced_with_a_line(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, path = auth_string(tmp_path), tmp_path / NAME
    break_as(how, path)
    again = auth_string(tmp_path)
    assert again != secret
    assert (path.lstat().st_mode & 0o777, path.is_symlink()) == (0o600, False)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said
    assert secret not in said
    assert again not in said
    assert auth_string(tmp_path) == again
    if how == "is a link":
        assert (tmp_path / "elsewhere").read_text().strip() == secret, "not followed"


def test_what_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(OutputDirError, match=NAME):
        auth_string(tmp_path)
    with pytest.raises(OutputDirError, match="PREFECT_HOME"):
        auth_string(Path("/proc/nowhere"))
