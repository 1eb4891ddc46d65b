"""Where `make powerloss` cannot be done, it says so in a line. Nothing is mounted here."""

import os
import platform
import shutil
from typing import Any

import pytest

from tests.powerloss import campaign, filesystems


@pytest.mark.parametrize(
    ("module", "name", "answer", "said"),
    [
        (platform, "system", "Darwin", "needs Linux"),
        (os, "geteuid", 1000, "run it as root"),
        (shutil, "which", None, "mkfs.btrfs (btrfs-progs)"),
        (filesystems, "find_library", None, "libfuse3 (fuse3)"),
    ],
)
def test_says_what_is_missing(
    module: Any,
    name: str,
    answer: Any,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, name, lambda *_: answer)
    assert campaign.main([]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1
    assert printed.out == ""


def test_ten_kinds_and_two_broken_stores_are_put_to_the_test() -> None:
    jobs = campaign.jobs(310, "", with_broken=True)
    assert len({job.fault for job in jobs if not job.broken}) == 10
    assert {job.broken for job in jobs if job.broken} == {"no-fsync", "no-directory-fsync"}
