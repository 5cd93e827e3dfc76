"""A full disk ends in one sentence that names the output, and nothing is left half written."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_bundle import pack_tiny

from skindx import cli
from skindx.core.errors import UserError
from skindx.training import jobs
from skindx.training.checkpoint.finished import FinishedMember, save_member
from skindx.training.checkpoint.keeper import checkpoint_folder


@contextmanager
def full_after(size_bytes: int) -> Iterator[None]:
    """Let every file of this process end at `size_bytes`: the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size_bytes", [200, 20_000])
def test_packing_on_a_full_disk_is_one_sentence(
    size_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pack() -> None:
        with full_after(size_bytes):
            pack_tiny(tmp_path / "run" / "bundle")

    monkeypatch.setattr(cli, "app", pack)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert err.startswith(f"error: {tmp_path}/run/bundle")
    assert "the free space of its disk" in err
    assert err.count("\n") == 1
    assert list((tmp_path / "run").iterdir()) == []


@dataclass
class _Job:
    run: Path
    label: str = "member a"
    key: str = "a"

    def save(self, result: FinishedMember, history: list[dict[str, Any]]) -> None:
        save_member(self.run, "a", result, history, "fingerprint")


def test_a_member_that_cannot_be_written_promises_only_what_is_there(tmp_path: Path) -> None:
    finished = FinishedMember({"w": torch.zeros(9000)}, np.zeros((2, 2)), np.zeros(2, np.int64))
    with (
        full_after(5000),
        pytest.raises(UserError, match=r"no checkpoint could be written either"),
    ):
        jobs._save(_Job(tmp_path), finished, [{"epoch": 1}])
    (checkpoint_folder(tmp_path, "a") / "epoch-0001-step-000001").mkdir(parents=True)
    with full_after(5000), pytest.raises(UserError, match="goes on from the last checkpoint"):
        jobs._save(_Job(tmp_path), finished, [{"epoch": 1}])


def test_the_error_of_a_full_disk_names_its_number() -> None:
    assert {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} <= cli._REFUSED
