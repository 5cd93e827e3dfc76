import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import iou
from skindx.data.manifest import Record, read_manifest
from skindx.metrics import Ranked, paired_interval
from skindx.models.bundle.bundle import open_bundle
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.scan.compose import composed_record, write_dataset
from skindx_bench.scan.crop import Answers, Arms, Config, by_colour, chosen
from skindx_bench.scan.crop_figures import Row, figures_of
from skindx_bench.scan.texture import noise
from skindx_bench.scan.wide_frames import (
    Outlined,
    Skin,
    outlined,
    wide_frame,
    write_wide_frames,
)
from skindx_bench.subjects import run_bench


def skin(rng: np.random.Generator) -> NDArray[np.uint8]:
    fine = 3 * noise(150, 200, 2, rng)[..., None]
    return np.clip(np.array([205, 160, 140]) + fine, 0, 255).astype(np.uint8)


def lesion(number: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A dark ellipse with stripes of its own, left of the middle, and its mask."""
    rng = np.random.default_rng(number)
    mask = np.zeros((150, 200), np.uint8)
    cv2.ellipse(mask, (60, 75), (24 + number % 5, 18), 0, 0, 360, 1, -1)
    pixels = skin(rng).astype(np.float32)
    stripes = 60 + 15 * np.sin(np.arange(200) / 1.5)
    pixels -= cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 1)[..., None] * stripes[:, None]
    return np.clip(pixels, 0, 255).astype(np.uint8), mask > 0


def as_outlined(number: int) -> Outlined:
    pixels, mask = lesion(number)
    return Outlined(record(f"{number:064x}"), pixels, mask)


def record(sha256: str, label: str = "a", group: str = "") -> Record:
    return Record("p.png", sha256, "0", 200, 150, label, group or sha256, "val")


@pytest.fixture(scope="module")
def images() -> list[Outlined]:
    return [as_outlined(number) for number in range(6)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    folder = tmp_path_factory.mktemp("lesions")
    taxonomy = open_bundle(tiny_bundle).taxonomy
    (folder / "masks").mkdir()
    records = []
    for number in range(12):
        pixels, mask = lesion(number)
        label = taxonomy.keys[number % len(taxonomy.keys)]
        made = composed_record(
            *(folder, pixels, ".png"),
            label=label,
            group=f"g{number}",
            split="train" if number % 2 else "val",
        )
        records.append(replace(made, source_url=f"images/{number}.jpg"))
        cv2.imwrite(str(folder / "masks" / f"{number}.png"), mask.astype(np.uint8) * 255)
    write_dataset(folder, records, taxonomy)
    return folder


def test_the_bench_runs_and_goes_on_from_its_rows(
    tiny_bundle: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [
        f"bundle={tiny_bundle}",
        f"dataset={dataset}",
        f"masks={dataset / 'masks'}",
        f"rows={tmp_path / 'rows.jsonl'}",
        "images=4",
        "views=1",
    ]
    first = run_bench("crop", tmp_path / "crop.json", sets, smallest=True)
    for where in ("taken", "times_3"):
        for key in ("whole_balanced", "detector_minus_whole_log_loss", "recall", "drawn_auroc"):
            assert f"{where}_{key}" in first.figures
    assert "times_3_detector_minus_centre_balanced" in first.figures
    assert "taken_centre_balanced" not in first.figures  # a lesion as taken fills the frame
    assert first.figures["detector_cost_times_whole"].value == 1  # a threshold has no network
    assert first.figures["fine_cost_times_whole"].value == pytest.approx(4, rel=0.1)
    assert not first.partial
    assert first.figures["times_3_recall"].value == 100  # a dark ellipse on even skin
    monkeypatch.setattr(Arms, "__call__", None)
    again = run_bench("crop", None, sets, smallest=True)
    assert again.figures == first.figures
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:5]))  # of two images of four
    short = run_bench("crop", None, [*sets, "limit_s=1e-9"], smallest=True)
    assert short.partial == "2 of 4 images were not asked about: the time was up"
    assert short.figures["taken_recall"].n == 2
    with pytest.raises(UserError, match="answers of other networks or settings"):
        run_bench("crop", None, [*sets, "margin=2"], smallest=True)


class OneSize:
    def probabilities(self, images: list[NDArray[np.uint8]]) -> None:
        raise AssertionError("Input height (128) doesn't match model (64).")


def test_networks_of_one_size_are_asked_without_the_higher_resolution(tiny_bundle: Path) -> None:
    arms = replace(Arms.of(open_bundle(tiny_bundle), Config()), fine=OneSize())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"one size alone; .*arms=\[detector, drawn, centre\]"):
        arms.costs()


def test_it_says_what_is_missing(tiny_bundle: Path, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a bundle, its dataset and masks"):
        run_bench("crop", smallest=True)
    with pytest.raises(UserError, match="has a mask of no image"):
        list(outlined(dataset, tmp_path, read_manifest(dataset)))
    cv2.imwrite(str(tmp_path / "0.png"), np.zeros((7, 9), np.uint8))
    with pytest.raises(UserError, match="9 x 7 pixels and its image 200 x 150"):
        list(outlined(dataset, tmp_path, read_manifest(dataset)))


def test_a_half_written_row_is_asked_again(tmp_path: Path) -> None:
    settings = Config(rows=tmp_path / "rows")
    made = row("taken", 0, "a", {"whole": [1.0, 0.0]})
    Answers.of(settings, ["x"]).get("taken", record("0"), lambda: made)
    with (tmp_path / "rows").open("a") as file:
        file.write(made.model_dump_json()[:30])
    assert [*Answers.of(settings, ["x"]).kept] == [("taken", "0")]


def test_a_frame_is_as_wide_as_asked_and_its_lesion_keeps_its_contrast(
    images: list[Outlined],
) -> None:
    of = Skin.of(images)
    source = images[0]
    frame, again = (wide_frame(source, 4, of, np.random.default_rng(3)) for _ in "ab")
    assert np.array_equal(frame.pixels_HW3, again.pixels_HW3)
    assert frame.pixels_HW3.shape[1] == 4 * source.longer
    assert frame.pixels_HW3.shape[0] == round(0.75 * 4 * source.longer)
    box = frame.box
    assert box
    x1, y1, x2, y2 = source.corners
    assert (box.x2 - box.x1, box.y2 - box.y1) == (x2 - x1, y2 - y1)
    inside = frame.pixels_HW3[int(box.y1) : int(box.y2), int(box.x1) : int(box.x2)]
    stripes = [part.astype(float)[8:-8, 8:-8].mean(axis=(0, 2)) for part in (
        inside, source.pixels_HW3[y1:y2, x1:x2])]  # fmt: skip
    assert np.corrcoef(*stripes)[0, 1] > 0.95
    assert np.abs(stripes[0] - stripes[1]).max() < 7
    (decoy,) = frame.decoys
    assert iou([decoy], [box])[0, 0] == 0
    places = {wide_frame(source, 4, of, np.random.default_rng(seed)).box for seed in range(4)}
    assert len(places) == 4
    assert wide_frame(source, 4, of, np.random.default_rng(3), bare=True).box is None


def test_blending_leaves_no_edge(images: list[Outlined]) -> None:
    """Along the rim of bare skin that is laid in, colours change no more than elsewhere."""
    bare = replace(images[0], pixels_HW3=np.clip(skin(np.random.default_rng(9)).astype(int) - 8,
                                                 0, 255).astype(np.uint8))  # fmt: skip
    for seed in range(4):
        frame = wide_frame(bare, 3, Skin.of(images), np.random.default_rng(seed), decoys=0)
        box = frame.box
        assert box
        grey = cv2.GaussianBlur(cv2.cvtColor(frame.pixels_HW3, cv2.COLOR_RGB2GRAY), (0, 0), 1)
        steps = np.abs(cv2.Laplacian(grey, cv2.CV_32F, ksize=3))
        mask = np.zeros(grey.shape, np.uint8)
        x1, y1, x2, y2 = bare.corners
        mask[int(box.y1) : int(box.y2), int(box.x1) : int(box.x2)] = bare.mask_HW[y1:y2, x1:x2]
        outer, inner = (cv2.dilate(mask, np.ones((side, side))) for side in (15, 7))
        assert steps[(outer > 0) & (inner == 0)].mean() < 1.5 * steps[outer == 0].mean()


def test_frames_for_a_detector_stay_in_their_split(dataset: Path, tmp_path: Path) -> None:
    records = write_wide_frames(tmp_path, dataset, dataset / "masks", 12)
    split_of_group = {one.group: one.split for one in read_manifest(dataset)}
    assert {one.split for one in records} == {"train", "val"}
    assert all(split_of_group[one.group] == one.split for one in records)
    assert all((one.label == "lesion") == bool(one.boxes) for one in records)


def test_colour_alone_finds_a_dark_lesion_and_nothing_on_bare_skin() -> None:
    source = as_outlined(1)
    box = by_colour(source.pixels_HW3)
    assert box
    assert iou([box], [source.box])[0, 0] > 0.7
    assert by_colour(skin(np.random.default_rng(0))) is None


def test_rare_classes_are_used_up_first_and_a_group_gives_one_image() -> None:
    counts = {"a": 30, "b": 3, "c": 9}
    many = [
        record(f"{key}{n}{copy}", key, f"{key}{n}")
        for key, count in counts.items()
        for n in range(count)
        for copy in "xy"
    ]
    some = chosen(many, 18, 0)
    assert len({one.group for one in some}) == len(some) == 18
    assert [sum(one.label == key for one in some) for key in "abc"] == [8, 3, 7]
    assert chosen(many, 18, 1) != some


TAXONOMY = Taxonomy(
    name="two",
    title="Two",
    classes=(
        SkinClass(key="a", name="A", urgency="routine"),
        SkinClass(key="b", name="B", urgency="urgent"),
    ),
)


def row(where: str, number: int, label: str, answers: dict[str, list[float]]) -> Row:
    return Row(
        where=where,
        sha256=str(number),
        group=str(number),
        label=label,
        share=0.3,
        answers=answers,
        refused={},
        iou=None if number % 4 == 0 else 0.8,
        in_decoy=False,
        decoys=1,
    )


def test_figures_of_a_crop_that_is_right_where_the_whole_image_is_not() -> None:
    truth = ["a", "b"] * 20
    sure = {"a": [0.9, 0.1], "b": [0.1, 0.9]}
    rows = [
        row("times_3", n, label, {"whole": [0.6, 0.4], "detector": sure[label]})
        for n, label in enumerate(truth)
    ]
    figures = figures_of(rows, TAXONOMY, np.array([0.5, 0.5]), 200)
    assert figures["times_3_whole_balanced"].value == 50
    gain = figures["times_3_detector_minus_whole_balanced"]
    assert (gain.value, gain.unit) == (50, "points")
    assert 0 < gain.spread[0] < 50
    assert figures["times_3_detector_minus_whole_sensitivity_a"].value == 0
    assert figures["times_3_detector_minus_whole_sensitivity_b"].value == 100
    assert figures["times_3_detector_auroc"].value == 1
    loss = figures["times_3_detector_minus_whole_log_loss"]
    expected = -np.log(0.9) + (np.log(0.6) + np.log(0.4)) / 2
    assert loss.value == pytest.approx(expected)
    assert figures["times_3_no_box"].value == 25
    assert figures["times_3_recall"].value == 75
    for key, figure in figures.items():
        low, high = figure.spread
        assert low < high or key == "times_3_share"  # which is the same for all
    assert figures["times_3_detector_minus_whole_sensitivity_b"].n == truth.count("b")
    assert gain.n == len(truth)
    # A mix in which b is rare makes the balanced rule choose it at 0.4 already.
    rare = figures_of(rows, TAXONOMY, np.array([0.9, 0.1]), 50)
    assert rare["times_3_whole_sensitivity_b"].value == 100


def test_gains_of_all_classes_hold_together() -> None:
    rng = np.random.default_rng(0)
    answers = rng.uniform(0.2, 0.8, (60, 2))
    rows = [
        row("taken", n, "ab"[n % 2], {
            "whole": [whole, 1 - whole], "drawn": [drawn, 1 - drawn],
        })
        for n, (whole, drawn) in enumerate(answers.tolist())
    ]  # fmt: skip
    figures = figures_of(rows, TAXONOMY, None, 200)
    truth = np.arange(60) % 2
    drawn, whole = (
        Ranked.auroc(np.column_stack([answers[:, n], 1 - answers[:, n]]), truth, {0})
        for n in (1, 0)
    )
    groups = np.array([str(n) for n in range(60)])
    for key, level in (("auroc_a", 0.975), ("auroc", 0.95)):
        found = paired_interval(drawn, whole, groups, draws=200, level=level)
        measured = figures[f"taken_drawn_minus_whole_{key}"].spread
        assert measured == pytest.approx((found.low, found.high))


def test_labels_of_another_dataset_are_judged_by_urgency() -> None:
    rows = [
        row(
            "boxes",
            n,
            ("benign", "malignant")[n % 2],
            {"whole": [0.7, 0.3] if n % 2 == 0 else [0.2, 0.8]},
        )
        for n in range(20)
    ]
    figures = figures_of(rows, TAXONOMY, None, 50)
    assert figures["boxes_whole_auroc"].value == 1
    assert figures["boxes_whole_sensitivity_malignant"].value == 100
    rare = [one for one in rows if one.label == "malignant"] + rows[:4:2]  # of benign two
    figures = figures_of(rare, TAXONOMY, None, 50)
    assert figures["boxes_whole_sensitivity_malignant"].n == 10
    assert not {f"boxes_whole_{key}" for key in ("auroc", "balanced")} & figures.keys()
    assert not any("benign" in key for key in figures)


def test_what_the_check_refuses_is_compared_in_pairs() -> None:
    rows = [
        row("taken", n, "ab"[n % 2], {"whole": [0.5, 0.5], "detector": [0.5, 0.5]}).model_copy(
            update={"refused": {"whole": True, "detector": n < 5}}
        )
        for n in range(20)
    ]
    figures = figures_of(rows, TAXONOMY, None, 50)
    assert figures["taken_detector_refused"].value == 25
    fewer = figures["taken_detector_minus_whole_refused"]
    assert (fewer.value, fewer.unit) == (-75, "points")
    assert figures["taken_both_log_loss"].n == 20  # of the mean no check says anything


def test_rows_are_written_as_they_are_read(tmp_path: Path) -> None:
    made = row("boxes", 1, "benign", {"whole": [0.25, 0.75]})
    assert Row.parse(json.loads(made.model_dump_json()), "x") == made
