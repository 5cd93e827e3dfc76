from pathlib import Path

import pytest

from skindx_bench.subjects import run_bench


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.distributed
def test_both_trainers_end_with_a_score(small_dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "detector.json"
    result = run_bench("detector", file, [f"dataset={small_dataset}"], smallest=True)
    assert result.figures
    assert file.is_file()
