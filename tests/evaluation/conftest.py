from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from markupsafe import Markup
from whole_evaluation import write_whole_evaluation

from skindx.evaluation import evaluation_report

PLOTS = (
    *("confusion_plot", "decision_plot", "reliability_plot", "risk_plot", "roc_plot"),
    *("sensitivity_plot", "urgent_plot"),
)


class NoPlot:
    def svg(self) -> Markup:
        return Markup('<svg role="img" aria-label="a plot"></svg>')


@contextmanager
def no_plots() -> Iterator[None]:
    """Leave out the plots, most of a small report's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PLOTS:
            patch.setattr(evaluation_report, name, lambda *_: NoPlot())
        yield


@pytest.fixture
def without_plots() -> Iterator[None]:
    with no_plots():
        yield


@pytest.fixture(scope="module", autouse=True)
def plots() -> Iterator[None]:
    """Leave them out everywhere but in test_report."""
    with no_plots():
        yield


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One evaluation for all tests that only read it."""
    folder = tmp_path_factory.mktemp("evaluation")
    write_whole_evaluation(folder)
    return folder
