"""The headline figures of a model comparison."""

import dataclasses
from collections.abc import Sequence

from skindx.evaluation.answers import Answers
from skindx.evaluation.pooled_folds import images_of_all
from skindx.metrics import Interval, Statistic, paired_interval
from skindx_bench.harness.clock import Figure
from skindx_bench.model_comparison.table import ENSEMBLE, ModelRow


def figures_of(rows: Sequence[ModelRow], answers: Sequence[Answers]) -> dict[str, Figure]:
    """Return the headline figures: the member that validation would choose, and the ensemble."""
    singles = [row for row in rows if row.name != ENSEMBLE]
    chosen = max(singles, key=lambda row: row.validation or 0.0)
    best = max(singles, key=lambda row: row.balanced.mean)
    gain = difference(answers, best.name)
    n = len(answers)
    ensemble = rows[-1].scores.figures
    return {
        "best_by_validation_balanced": _figure(100 * chosen.balanced.mean, chosen.balanced.pooled),
        "ensemble_balanced": _figure(
            100 * ensemble["balanced_accuracy"].mean, ensemble["balanced_accuracy"].pooled
        ),
        "ensemble_minus_best_balanced": Figure(
            100 * gain.value, "points", n, (100 * gain.low, 100 * gain.high)
        ),
        "ensemble_calibration_error": Figure(
            ensemble["calibration_error"].pooled.value,
            "",
            n,
            (
                ensemble["calibration_error"].pooled.low,
                ensemble["calibration_error"].pooled.high,
            ),
        ),
    }


def _figure(percent: float, pooled: Interval) -> Figure:
    return Figure(percent, "%", 1, (100 * pooled.low, 100 * pooled.high))


def difference(answers: Sequence[Answers], name: str) -> Interval:
    """Return the balanced accuracy of the ensembles minus a member's, paired over all folds."""
    truth_N, groups_N, ensemble_NC = images_of_all(answers)
    *_, member_NC = images_of_all([alone_in(fold, name) for fold in answers])
    return paired_interval(
        Statistic.balanced_accuracy(ensemble_NC, truth_N),
        Statistic.balanced_accuracy(member_NC, truth_N),
        groups_N,
    )


def alone_in(answers: Answers, name: str) -> Answers:
    """Return the answers of one member as those of the whole predictor."""
    own_NC = answers.members_NMC[:, answers.members.index(name)]
    return dataclasses.replace(answers, ensemble_NC=own_NC)
