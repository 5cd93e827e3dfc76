from pathlib import Path

import pytest

from skindx.bench import run_bench


def test_the_bench_measures_a_pair_of_chunks_and_the_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_bench("scale", tmp_path / "scale.json", smallest=True)
    assert result.figures.keys() == {"chunk_pair_s", "driver_us_per_row", "driver_bytes_per_row"}
    assert result.figures["chunk_pair_s"].value > 0
    assert result.figures["driver_us_per_row"].value > 0
    assert result.figures["driver_bytes_per_row"].value >= 0
    assert "200 codes against as many" in capsys.readouterr().out
