import numpy as np
import pytest

from skindx_bench.honesty.labels import RANKINGS, indicator
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_bench_runs_and_compares() -> None:
    pytest.importorskip("cleanlab")
    result = run_bench("labels", smallest=True)
    assert {"label_precision_at_n", "label_precision_at_n_confusable"} <= set(result.figures)
    assert len(result.figures) == 2 * len(RANKINGS)
    assert all(0 <= figure.value <= 1 for figure in result.figures.values())
    assert result.figures["label_precision_at_n"].value > 0.2  # at random 5 %


def test_selfcleans_indicator_by_hand() -> None:
    vectors = np.array([[1, 0], [1, 0], [0.8, 0.6], [0, 1]], np.float32)
    # The first two are one group; of the others 0.2 and 1 away, and 0.4 from the third.
    scores = indicator(vectors, np.array([0, 0, 0, 1]), np.array(["a", "a", "b", "c"]))
    assert scores[0] == pytest.approx(0.2**2 / (0.2**2 + 1))
    assert scores[2] == pytest.approx(0.2**2 / (0.2**2 + 0.4**2))
    assert scores[3] == pytest.approx(2.0**2 / (2.0**2 + 0.4**2))
