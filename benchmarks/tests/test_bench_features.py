import pytest

from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_verb_is_timed_with_its_report() -> None:
    figures = run_bench("features", smallest=True).figures
    assert set(figures) == {"features_report_s", "features_report_processor_s"}
    assert figures["features_report_processor_s"].value > 0
