import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import CLASSES, records_of, simulate
from plain_measures import top_k_accuracy

from skindx.core.errors import UserError
from skindx.evaluation.answers import PREDICTIONS, Answers, read_predictions, write_predictions
from skindx.evaluation.figures import FIGURES, measure_scores
from skindx_bench.harness.pooled_folds import pool, pool_answers


def whole(n: int = 60) -> Answers:
    labels, table = simulate(n)
    groups = [f"lesion {i // 2}" for i in range(n)]
    return Answers.join(records_of(labels, groups), table, CLASSES, ["alpha", "beta"])


def write(folder: Path, answers: Answers) -> Path:
    folder.mkdir()
    records = records_of([CLASSES[i].key for i in answers.truth_N])
    write_predictions(folder / PREDICTIONS, records, answers)
    return folder


def test_folds_pool_to_what_all_images_together_give(tmp_path: Path) -> None:
    answers = whole()
    folds = [answers.some(np.arange(60) // 20 == fold) for fold in range(3)]
    found = pool([write(tmp_path / str(i), fold) for i, fold in enumerate(folds)], draws=40)
    together = measure_scores(
        "pooled", answers.ensemble_NC, answers.truth_N, answers.groups_N, draws=40
    )
    assert found.scores == together
    assert (found.pictures, found.groups) == (60, 30)
    top1 = found.figures["top1"]
    accuracies = [top_k_accuracy(fold.ensemble_NC, fold.truth_N) for fold in folds]
    assert top1.folds == pytest.approx(accuracies)
    assert top1.mean == pytest.approx(np.mean(accuracies))
    assert top1.deviation == pytest.approx(np.std(accuracies, ddof=1))
    assert top1.pooled.low < top1.pooled.value < top1.pooled.high
    plain = found.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert list(plain["figures"]) == [
        key for key, figure in FIGURES.items() if not figure.by_balanced_rule
    ]


def test_one_fold_has_no_deviation_but_all_figures() -> None:
    found = pool_answers([whole(20)], ["only"], draws=20)
    assert np.isnan(found.figures["auroc"].deviation)
    assert found.figures["auroc"].mean == found.figures["auroc"].pooled.value
    assert found.to_dict()["figures"]["auroc"]["deviation"] is None


def test_folds_that_share_something_or_differ_are_refused() -> None:
    answers = whole(20)
    first, second = answers.some(np.arange(12)), answers.some(np.arange(12, 20))
    with pytest.raises(UserError, match=r"the image 0+b is in both a and b; .*disjoint"):
        pool_answers([first, answers.some(np.arange(11, 20))], ["a", "b"])
    with pytest.raises(UserError, match=r"the image \w+ is in both a and a"):
        pool_answers([first, first], ["a", "a"])
    torn = dataclasses.replace(second, groups_N=np.array(["lesion 0"] * 8))
    with pytest.raises(UserError, match="the group lesion 0 is in both a and b"):
        pool_answers([first, torn], ["a", "b"])
    other = dataclasses.replace(second, classes=(*CLASSES[1:], CLASSES[0]))
    with pytest.raises(UserError, match="b has other classes than a"):
        pool_answers([first, other], ["a", "b"])
    with pytest.raises(UserError, match="no evaluation to pool"):
        pool([])


def test_predictions_come_back_as_they_were_written(tmp_path: Path) -> None:
    answers = whole(20)
    answers = dataclasses.replace(
        answers,
        skin_types=(None, *[2] * 19),
        sources=("clinic", *[""] * 19),
        sets_NC=answers.ensemble_NC > 0.2,
        level=0.9,
    )
    back = read_predictions(write(tmp_path / "a", answers))
    for field in dataclasses.fields(Answers):
        np.testing.assert_array_equal(getattr(back, field.name), getattr(answers, field.name))
    assert read_predictions(write(tmp_path / "b", whole(3))).sets_NC is None


def test_what_is_no_evaluation_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not an evaluation.*skindx evaluate"):
        read_predictions(tmp_path)
    (tmp_path / PREDICTIONS).write_bytes(b"PAR1 no parquet")
    with pytest.raises(UserError, match="is damaged or from an older version"):
        read_predictions(tmp_path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"path": ["x"]}), tmp_path / PREDICTIONS)
    with pytest.raises(UserError, match=r"older version.*run `skindx evaluate` again"):
        read_predictions(tmp_path)
