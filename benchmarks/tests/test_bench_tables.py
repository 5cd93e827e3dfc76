import pytest

from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_keys_and_units_of_the_smallest() -> None:
    result = run_bench("tables", smallest=True)
    assert {key: figure.unit for key, figure in result.figures.items()} == {
        "table_build": "images/s",
        "folder_build": "images/s",
        "table_over_folder": "×",
        "wide_table": "s",
        "wide_table_memory": "MB",
        "shards_memory": "MB",
        "shards_4x_memory": "MB",
    }
    assert all(figure.value > 0 and figure.n == 2 for figure in result.figures.values())
    assert "200 rows of 14 columns" in result.notes[0]
