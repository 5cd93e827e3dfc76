import csv
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers
from skindx.taxonomy import SkinClass
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx_bench.harness.pooled_folds import pool_answers
from skindx_bench.harness.result import Figure
from skindx_bench.harness.training import read_history
from skindx_bench.train import model_comparison
from skindx_bench.train.comparison_table import (
    ENSEMBLE,
    ModelRow,
    difference,
    markdown,
    write_tables,
)
from skindx_bench.train.model_comparison import Config, _minutes, _training_speed, run


def _answers(fold: int) -> Answers:
    """Twenty images of two classes: `good` is always right, `bad` half the time."""
    truth_N = np.arange(20) % 2
    good_NC = np.eye(2)[truth_N] * 0.8 + 0.1
    bad_NC = np.eye(2)[np.arange(20) // 10] * 0.8 + 0.1
    return Answers(
        classes=(SkinClass(key="a", name="a"), SkinClass(key="b", name="b")),
        members=("good", "bad"),
        truth_N=truth_N,
        groups_N=np.array([f"g{fold}-{n}" for n in range(20)]),
        sha256_N=np.array([f"s{fold}-{n}" for n in range(20)]),
        ensemble_NC=good_NC,
        members_NMC=np.stack([good_NC, bad_NC], axis=1),
        skin_types=(None,) * 20,
        sources=("",) * 20,
    )


def _rows() -> list[ModelRow]:
    scores = pool_answers([_answers(0), _answers(1)], ["0", "1"], draws=50)
    speed = Figure(12.0, "images/s", 5, (11.0, 13.0))
    return [
        ModelRow("r18", scores, "resnet18", 160, 11_200_000, 1_800_000_000, 0.9, speed, speed, 3.0),
        ModelRow(ENSEMBLE, scores),
    ]


def test_the_ensemble_is_compared_on_the_images_of_all_folds() -> None:
    both = [_answers(0), _answers(1)]
    assert difference(both, "good").value == 0
    gain = difference(both, "bad")
    assert gain.value == pytest.approx(0.5)
    assert gain.low > 0.2


def test_the_table_has_a_row_a_model(tmp_path: Path) -> None:
    rows = _rows()
    lines = markdown(rows).splitlines()
    assert [line.count("|") for line in lines] == [13] * 4
    assert lines[2].startswith("| r18 (resnet18) | 160 | 11.20 | 1.80 | 100.0 [")
    assert lines[2].endswith("| 12 | 12 | 3.0 |  | unavailable |")
    assert lines[3].startswith("| ensemble |  |  |  | 100.0 [")
    write_tables(tmp_path, rows)
    table = list(csv.DictReader((tmp_path / "zoo.csv").read_text().splitlines()))
    assert [row["name"] for row in table] == ["r18", "ensemble"]
    assert float(table[0]["balanced_accuracy_mean"]) == 1
    assert (tmp_path / "zoo.png").read_bytes().startswith(b"\x89PNG")


def test_a_head_on_a_frozen_trunk_has_a_history_without_a_speed(tmp_path: Path) -> None:
    folder = tmp_path / "members" / "head"
    folder.mkdir(parents=True)
    (folder / "history.csv").write_text("epoch,val_balanced,C,trunk\n1,0.5,,e85cc63d\n")
    history = read_history(tmp_path, "head")
    assert history == [{"epoch": 1.0, "val_balanced": 0.5}]
    assert _training_speed([history]) is None
    assert _minutes([tmp_path], [history]) is None


def test_a_fold_that_is_finished_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.parquet").write_bytes(b"images")
    called: list[str] = []
    monkeypatch.setattr(model_comparison, "_train", lambda *_: called.append("train"))
    monkeypatch.setattr(model_comparison, "run_skindx", lambda verb, *_: called.append(verb))
    training = TrainSettings()
    for _ in range(2):
        model_comparison._train_and_evaluate(tmp_path, training, together=False)
    assert called == ["train", "evaluate"]
    changed = training.model_copy(update={"recipe": Recipe(epochs=3)})
    model_comparison._train_and_evaluate(tmp_path, changed, together=False)
    assert called == ["train", "evaluate"] * 2


def test_a_list_without_members_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zoo.yaml").write_text("reused: [{run: a, member: b}]\n")
    with pytest.raises(UserError, match="no members to train"):
        run(Config(config=tmp_path / "zoo.yaml", out=tmp_path / "out"))
