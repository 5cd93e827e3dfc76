import dataclasses
import json

import numpy as np
import pytest
from evaluation_fakes import prediction, records_of, scored, simulate

from skindx.data.box import Box
from skindx.evaluation.score import Evaluation
from skindx.models.ensemble import Prediction

NEVUS, MELANOMA, SCC, WART = ((1.0, 0, 0, 0), (0, 1.0, 0, 0), (0, 0, 1.0, 0), (0, 0, 0, 1.0))


def simulated(n: int = 120) -> Evaluation:
    labels, table = simulate(n)
    return scored(records_of(labels), table, ["alpha", "beta"], draws=200)


def test_hand_counted_case() -> None:
    labels = ["nevus", "nevus", "melanoma", "melanoma", "scc"]
    said = [NEVUS, WART, SCC, NEVUS, SCC]
    found = scored(
        records_of(labels),
        [prediction(probabilities) for probabilities in said],
        ["only"],
        draws=50,
    )
    assert found.ensemble.top1.value == pytest.approx(2 / 5)
    assert found.ensemble.balanced_accuracy.value == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert found.confusion == ((1, 0, 0, 1), (1, 0, 1, 0), (0, 0, 1, 0), (0, 0, 0, 0))
    assert [(condition.n, condition.found) for condition in found.classes] == [
        (2, 1),
        (2, 0),
        (1, 1),
        (0, 0),
    ]
    assert found.k == 4
    assert found.ensemble.top_k.value == 1
    # One melanoma was called a carcinoma, which is urgent as well: only the other one is missed.
    assert found.urgent is not None
    assert (found.urgent.n, found.urgent.missed) == (3, 1)
    assert found.gains == ()
    assert found.ensemble.top1 == found.members[0].top1


def test_without_validation_answers_the_gain_over_each_member_stands() -> None:
    labels = ["nevus", "melanoma", "scc", "wart"]
    table = [
        prediction(NEVUS, NEVUS, WART),
        prediction(WART, MELANOMA, MELANOMA),
        prediction(WART, SCC, WART),
        prediction(WART, NEVUS, WART),
    ]
    found = scored(records_of(labels), table, ["bad", "good", "odd"], draws=50)
    assert [member.top1.value for member in found.members] == [0.5, 0.75, 0.5]
    top1 = found.gains[0]
    assert (top1.key, top1.choice, top1.over_better) == ("top1", None, None)
    # The ensemble is right on nevus, melanoma and wart: as often as the good one, elsewhere.
    assert [one.gain.value for one in top1.gains] == [0.25, 0, 0.25]
    assert [one.member for one in top1.gains] == ["bad", "good", "odd"]
    assert top1.gains[1].gain.low < 0 < top1.gains[1].gain.high


def test_figures_belong_together() -> None:
    found = simulated()
    assert found.pictures == found.groups == 120
    for member, one in zip(found.members, found.gains[0].gains, strict=True):
        assert one.gain.value == pytest.approx(found.ensemble.top1.value - member.top1.value)
    assert sum(map(sum, found.confusion)) == sum(condition.n for condition in found.classes) == 120
    assert sum(part.n for part in found.reliability) == 120


def test_images_of_one_lesion_widen_every_interval() -> None:
    labels, table = simulate(40)
    fourfold = [label for label in labels for _ in range(4)], [x for x in table for _ in range(4)]
    groups = [f"lesion {i // 4}" for i in range(160)]
    alone = scored(records_of(fourfold[0]), fourfold[1], "ab", draws=400)
    joined = scored(records_of(fourfold[0], groups), fourfold[1], "ab", draws=400)
    assert joined.groups == 40

    def widths(found: Evaluation) -> list[float]:
        assert found.urgent is not None
        chosen = [found.ensemble.top1, found.classes[1].sensitivity, found.urgent.rate]
        return [interval.high - interval.low for interval in chosen]

    assert all(wide > 1.4 * slim for wide, slim in zip(widths(joined), widths(alone), strict=True))


def test_the_order_of_images_does_not_matter() -> None:
    labels, table = simulate(50)
    records = records_of(labels)
    order = np.random.default_rng(3).permutation(50)
    straight = scored(records, table, "ab", draws=100)
    shuffled = scored([records[i] for i in order], [table[i] for i in order], "ab", draws=100)
    assert shuffled.ensemble.top1 == straight.ensemble.top1
    assert shuffled.confusion == straight.confusion


def test_plain_values_are_strict_json_and_unknown_figures_are_null() -> None:
    plain = simulated(30).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["classes"][3]["n"] == 0
    assert plain["classes"][3]["sensitivity"] == {"value": None, "low": None, "high": None}


def test_no_urgent_class_means_no_miss_rate() -> None:
    found = scored(records_of(["nevus", "wart"]), [prediction(NEVUS)] * 2, "a", draws=10)
    assert found.urgent is None


def test_detector_counts_the_images_somebody_looked_at() -> None:
    drawn, hit = Box(0, 0, 10, 10, label="nevus"), Box(0, 0, 10, 10, score=0.9)
    records = records_of(["nevus"] * 3)
    boxes: list[tuple[Box, ...] | None] = [(drawn,), (), None]
    with_boxes = [
        dataclasses.replace(record, boxes=each) for record, each in zip(records, boxes, strict=True)
    ]
    finding = [prediction(NEVUS, boxes=boxes) for boxes in [(hit,), (), (hit,)]]

    found = scored(with_boxes, finding, "a", draws=10)
    assert found.detector is not None
    # The drawn box bears a class, the found one says "lesion": only their place is compared.
    assert found.detector.map50 == pytest.approx(1)
    assert (found.detector.pictures, found.detector.boxes) == (2, 1)

    blind = scored(with_boxes, [prediction(NEVUS)] * 3, "a", draws=10)
    assert (blind.has_detector, blind.detector) == (False, None)
    unlooked = scored(records, finding, "a", draws=10)
    assert (unlooked.has_detector, unlooked.detector) == (True, None)


def test_probabilities_that_are_no_numbers_are_refused() -> None:
    broken = Prediction(np.full(4, np.nan), np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match="finite"):
        scored(records_of(["nevus"]), [broken], "a", draws=10)
