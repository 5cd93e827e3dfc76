"""Two predictors on the same images: hand-counted, paired, refused where they differ."""

import dataclasses
import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import CLASSES, fake_class, prediction, records_of, simulate
from rich.console import Console

from skindx.core.errors import UserError
from skindx.evaluation.answers import PREDICTIONS, Answers, write_predictions
from skindx.evaluation.figures import FIGURES
from skindx.evaluation.predictor_comparison import (
    Comparison,
    compare,
    compare_folders,
    print_comparison,
    render_page,
    verdict,
)
from skindx.metrics import Interval, Statistic, paired_interval

NAMES = ("runs/a", "runs/b")
NEVUS, MELANOMA, SCC, WART = np.eye(4)


def pair(n: int = 60) -> tuple[Answers, Answers]:
    labels, table = simulate(n)
    groups = [f"lesion {i // 2}" for i in range(n)]
    first = Answers.join(records_of(labels, groups), table, CLASSES, ["alpha", "beta"])
    noise_NC = np.random.default_rng(7).dirichlet(np.ones(4), size=n)
    second = dataclasses.replace(
        first,
        ensemble_NC=0.5 * first.ensemble_NC + 0.5 * noise_NC,
        skin_types=(1, 5) * (n // 2),
        sources=("web",) * n,
    )
    return dataclasses.replace(first, skin_types=(1, 5) * (n // 2), sources=("web",) * n), second


def test_hand_counted_case() -> None:
    labels = ["nevus", "nevus", "melanoma", "melanoma", "scc"]
    first, second = (
        Answers.join(
            records_of(labels),
            [prediction(tuple(probabilities)) for probabilities in said],
            CLASSES,
            ["only"],
        )
        for said in (
            [NEVUS, NEVUS, MELANOMA, SCC, SCC],
            [NEVUS, WART, NEVUS, MELANOMA, SCC],
        )
    )
    found = compare(first, second, NAMES, draws=50)
    assert (found.test.only_first, found.test.only_second, found.test.p) == (2, 1, 1.0)
    top1 = found.figures[0]
    assert (top1.key, top1.first, top1.second) == ("top1", 0.8, 0.6)
    assert top1.difference.value == pytest.approx(0.2)
    parts = {(part.attribute, part.value): part for part in found.parts}
    urgent = parts["not to be missed", "urgent classes"]
    # The first calls one melanoma a carcinoma, which is urgent too; the second one a nevus.
    assert (urgent.n, urgent.first, urgent.second) == (3, 1.0, pytest.approx(2 / 3))
    assert (urgent.test.only_first, urgent.test.only_second) == (1, 0)
    melanoma = parts["not to be missed", "Melanoma"]
    assert (melanoma.first, melanoma.second) == (0.5, 0.5)
    assert (melanoma.test.only_first, melanoma.test.only_second) == (1, 1)
    assert parts["class", "Compound nevus"].difference.value == 0.5
    assert ("class", "Common wart") not in parts
    assert {attribute for attribute, _ in parts} == {"not to be missed", "class"}


def test_differences_are_paired_over_groups_and_change_sign() -> None:
    first, second = pair()
    found, turned = compare(first, second, NAMES), compare(second, first, NAMES[::-1])
    known = [key for key, figure in FIGURES.items() if not figure.by_balanced_rule]
    assert [figure.key for figure in found.figures] == known  # without a mix
    measures = (
        Statistic.balanced_accuracy(answers.ensemble_NC, first.truth_N)
        for answers in (first, second)
    )
    balanced = next(figure for figure in found.figures if figure.key == "balanced_accuracy")
    assert balanced.difference == paired_interval(*measures, first.groups_N)
    for here, there in zip(found.figures, turned.figures, strict=True):
        assert here.difference.value == pytest.approx(-there.difference.value)
        assert here.difference.low == pytest.approx(-there.difference.high)
    assert found.test.p == turned.test.p
    types = [part for part in found.parts if part.attribute == "skin type"]
    assert [(skin_type.value, skin_type.n) for skin_type in types] == [("I", 30), ("V", 30)]
    assert not [part for part in found.parts if part.attribute == "source"]  # only one


def test_the_order_of_images_and_classes_does_not_matter() -> None:
    first, second = pair()
    order = np.random.default_rng(3).permutation(60)
    turn = [2, 0, 3, 1]
    moved = second.some(order)
    moved = dataclasses.replace(
        moved,
        classes=tuple(CLASSES[i] for i in turn),
        truth_N=np.array([turn.index(i) for i in moved.truth_N]),
        ensemble_NC=moved.ensemble_NC[:, turn],
        members_NMC=moved.members_NMC[:, :, turn],
    )
    straight, shuffled = compare(first, second, NAMES), compare(first, moved, NAMES)
    assert shuffled.to_dict() == straight.to_dict()


def test_a_predictor_does_not_differ_from_itself() -> None:
    first, _ = pair(20)
    found = compare(first, first, NAMES, draws=30)
    assert all(figure.difference.value == 0 for figure in found.figures)
    assert found.test.p == 1
    assert "cannot tell them apart" in verdict(found)


def test_what_cannot_be_compared_is_refused() -> None:
    first, second = pair(20)
    with pytest.raises(UserError, match=r"different images \(1 are in only one"):
        compare(first, second.some(np.arange(19)), NAMES)
    strange = (*CLASSES[:3], fake_class("acne", "Acne"))
    with pytest.raises(UserError, match="different classes, because only one has acne"):
        compare(first, dataclasses.replace(second, classes=strange), NAMES)
    relabelled = dataclasses.replace(second, truth_N=(second.truth_N + 1) % 4)
    with pytest.raises(UserError, match=r"put 20 images into different classes.*same version"):
        compare(first, relabelled, NAMES)
    regrouped = dataclasses.replace(second, groups_N=np.roll(second.groups_N, 1))
    with pytest.raises(UserError, match="into different groups"):
        compare(first, regrouped, NAMES)


def write(folder: Path, answers: Answers) -> Path:
    folder.mkdir()
    records = records_of([CLASSES[i].key for i in answers.truth_N])
    write_predictions(folder / PREDICTIONS, records, answers)
    return folder


def test_folders_are_compared_on_disk(tmp_path: Path) -> None:
    first, second = pair(20)
    one, two = write(tmp_path / "one", first), write(tmp_path / "two", second)
    out = tmp_path / "out"
    found = compare_folders(one, two, out, draws=30)
    assert sorted(file.name for file in out.iterdir()) == ["comparison.html", "comparison.json"]
    reported = json.loads((out / "comparison.json").read_text())
    assert reported == found.to_dict()
    assert (reported["first"], reported["second"]) == (str(one), str(two))
    compare_folders(one, two, out, draws=30)
    with pytest.raises(UserError, match=r"holds other files"):
        compare_folders(one, two, tmp_path)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"is a bundle, and the dataset for the comparison is missing"
    ):
        compare_folders(tmp_path / "bundle", two, tmp_path / "new")
    with pytest.raises(UserError, match="is not an evaluation"):
        compare_folders(tmp_path / "nowhere", two, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def printed(comparison: Comparison) -> str:
    console = Console(width=140, file=io.StringIO(), color_system=None)
    print_comparison(comparison, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_page_and_terminal_say_the_same_and_names_stay_text() -> None:
    hostile = '<script>alert("a")</script>[red]'
    first, second = pair()
    found = compare(first, second, (hostile, "b"), draws=50)
    html = render_page(found)
    tree = ET.fromstring(html)
    text = " ".join(tree.itertext())
    assert hostile in text
    assert tree.find(".//script") is None
    shown = " ".join(printed(found).split())
    assert hostile in shown
    for term in ("Melanoma", "Squamous cell carcinoma", "Compound nevus", "skin type"):
        assert term in shown
        assert term.lower() in text.lower()
    assert verdict(found) in " ".join(text.split())
    assert f"only B on {found.test.only_second}" in shown


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (Interval(0.05, 0.01, 0.09), "+5.0 [+1.0, +9.0]: A is better"),
        (Interval(-0.05, -0.09, -0.01), "−5.0 [−9.0, −1.0]: B is better"),
        (Interval(0.0, float("nan"), float("nan")), "a single group"),
    ],
)
def test_the_verdict_follows_the_interval(difference: Interval, said: str) -> None:
    found = compare(*pair(20), NAMES, draws=10)
    figures = tuple(
        dataclasses.replace(figure, difference=difference)
        if figure.key == "balanced_accuracy"
        else figure
        for figure in found.figures
    )
    assert said in verdict(dataclasses.replace(found, figures=figures))
