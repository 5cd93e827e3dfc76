"""Benchmarks take the settings that the guide's shell blocks give them, and short blocks run."""

import importlib
from pathlib import Path

import pytest
from command_line import Skindx
from guide_commands import settings_of
from guide_pages import Block, shell_blocks

from skindx_bench.subjects import BENCHES

BLOCKS = [block for block in shell_blocks() if " bench " in block.text]


def test_benchmarks_take_the_settings_in_the_blocks() -> None:
    taken = [(name, sets) for name, _, sets in settings_of(BLOCKS) if name in BENCHES]
    assert any(sets for _, sets in taken)
    for name, sets in taken:
        importlib.import_module(BENCHES[name]).Config.load(None, sets)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.runs], ids=str)
def test_short_blocks_run(
    block: Block, tmp_path: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in block.commands():
        code, _, err = skindx(*words)
        assert code == 0, err
