"""The file of a learned choice: damaged, of another machine or version, it is not used."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_products import ALWAYS_COPY, one_leaf

from skindx.core.errors import UserError
from skindx.doctor import products
from skindx.models import nt_record as records
from skindx.models.nt_product import nt_gemm, plain_nt
from skindx.models.nt_record import NtRecord, choice_in_force, record_file


def _learned(**changes: Any) -> NtRecord:
    record = NtRecord.of(ALWAYS_COPY, "cpu", seconds=12.3, products=140, nt_wins=100)
    return record.model_copy(update=changes)


def test_without_a_file_it_is_nt_and_doctor_says_so(cache: Path) -> None:
    found = choice_in_force()
    assert (found.tree, found.usable) == (None, True)
    assert products().ok
    assert products().detail == "none learned on this machine: NT, as torch multiplies by itself"


def test_what_is_written_is_in_force(cache: Path) -> None:
    file = _learned().write()
    assert file.parent == cache
    assert file == record_file("cpu")
    found = choice_in_force()
    assert found.tree == ALWAYS_COPY
    assert found.reason.startswith("a tree of 1 leaves, learned 20")
    assert "in 12 s: NT was not slower in 100 of 140 products" in products().detail


def test_nt_always_is_said_and_there_is_no_tree_to_ask(cache: Path) -> None:
    _learned(tree=one_leaf(transposed=False)).write()
    found = choice_in_force()
    assert found.tree is None
    assert found.usable
    assert found.reason.startswith("NT always, learned")


def _edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(file: Path) -> None:
        raw = json.loads(file.read_text())
        change(raw)
        file.write_text(json.dumps(raw))

    return edit


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "another version": (_edited(lambda raw: raw.update(format=2)), "of another version"),
    "no version": (_edited(lambda raw: raw.pop("format")), "of another version"),
    "another machine": (_edited(lambda raw: raw.update(machine="0" * 32)), "another machine"),
    "another device": (_edited(lambda raw: raw.update(device="cuda")), "another machine"),
    "a threshold that is no number": (
        _edited(lambda raw: raw["tree"]["least"].update(m=float("nan"))),
        "is no number",
    ),
    "a damaged tree": (_edited(lambda raw: raw["tree"].update(nodes=[])), "at least 1"),
    "half a file": (lambda file: os.truncate(file, 100), "no valid JSON|not valid JSON"),
    "nothing": (lambda file: os.truncate(file, 0), "not valid JSON"),
    "a list": (lambda file: file.write_text("[]"), "JSON object"),
    "bytes": (lambda file: file.write_bytes(b"\xff\x00" * 50), "not valid JSON"),
    "deeply nested": (lambda file: file.write_text('{"a":' * 9000 + "1" + "}" * 9000), "nested"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "no plain file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_nt_in_one_line_of_doctor(fault: str, cache: Path) -> None:
    spoil, said = FAULTS[fault]
    spoil(_learned().write())
    found = choice_in_force()
    assert found.tree is None
    assert not found.usable
    finding = products()
    assert not finding.ok
    assert not finding.required
    assert "skindx bench gemm --fit" in finding.advice
    assert finding.detail.startswith("NT, as torch multiplies by itself, since ")
    assert "\n" not in finding.detail
    with pytest.raises(UserError, match=said):
        NtRecord.read(record_file("cpu"), "cpu")
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(nt_gemm(a, b), plain_nt(a, b))


def test_machines_that_share_a_home_have_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _learned().write()
    monkeypatch.setattr(records, "machine_fingerprint", lambda *more: "f" * 32)
    found = choice_in_force()
    assert found.tree is None
    assert found.usable
    assert "(1 in the cache of other machines or versions of torch)" in found.reason
    _learned().write()
    assert choice_in_force().tree == ALWAYS_COPY
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_a_sentence(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in its place")
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        _learned().write()
    assert choice_in_force().tree is None
