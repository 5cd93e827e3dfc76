"""`skindx new`: what it says of a folder, what it refuses, and that its commands work."""

import csv
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import yaml
from command_line import Skindx
from hypothesis import given
from hypothesis import strategies as st
from tiny_dataset import jpeg, skin

from skindx.cli.new import _Questions
from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest
from skindx.data.sources import folder as folder_source
from skindx.data.sources.folder import FolderFile, look_at
from skindx.models.classifier.pretrained import hub_problem
from skindx.start import first_estimate
from skindx.start.first_estimate import TimedNetwork, TimedSteps, estimates
from skindx.start.first_files import FirstAnswers, batch_of, config_text, recipe_text
from skindx.start.image_folder import ImageFolder, look
from skindx.training.config.run import TrainSettings

SMALL = {"name": "small", "model": "test_resnet", "preprocess": {"size": 64}}


def timed_network(*_: object) -> TimedNetwork:
    """Return a network of one layer: 1 s forward and 2 s backward for 10 images, 0.5 s update."""
    points = tuple((n, 0.3 * n, 10**9) for n in (5, 10))
    steps = TimedSteps("cpu", points, 1.0, 0.5, parameter_bytes=4000, optimizer_bytes=0)
    return TimedNetwork(steps, SMALL, pretrained=False)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test wait for a network to be timed."""
    monkeypatch.setattr(first_estimate, "time_network", timed_network)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 24 painted images of two classes, two of each patient, and a file that is none."""
    top = tmp_path_factory.mktemp("new") / "my images"
    for number in range(24):
        label = ("nevus", "my cancer")[number // 2 % 2]
        tint = np.array([40, 0, 0]) if label == "nevus" else np.array([0, 0, 30])
        pixels = np.clip(skin(number) + tint, 0, 255).astype(np.uint8)
        file = top / label / f"P{number // 2:02d}_{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(pixels))
    (top / "nevus" / "notes.jpg").write_text("no image")
    return top


def test_a_folder_is_described_and_its_recipe_builds(
    skindx: Skindx, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(images.rglob("*"))
    code, printed, err = skindx("new", images, "--out", "runs/mine", "--effort", "quick")
    assert code == 0, err
    assert sorted(images.rglob("*")) == before
    for text in (
        "24 images in 2 class folders",
        "1 file not-a-picture, such as notes.jpg",
        "my_cancer looks like a cancer and has none: urgent (default; --urgency changes it)",
        r"^([A-Za-z]*\d+)[_-] (default; --group-pattern changes it)",
        "class 'nevus' is taken for Nevus",
    ):
        assert text in printed
    recipe = yaml.safe_load((tmp_path / "runs/mine/recipe.yaml").read_text())
    assert recipe["urgency"] == {"my_cancer": "urgent"}
    commands = re.findall(r"^  \d\. skindx (.+)$", printed, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["build", "train", "evaluate"]
    expected = re.findall(r"^     (about .+ and .+ of memory)$", printed, re.MULTILINE)
    assert len(expected) == 3
    code, printed, _ = skindx()
    assert "runs/mine:" in printed
    assert printed.splitlines()[-1] == f"Next: skindx {commands[0]}"
    code, _, err = skindx(*shlex.split(commands[0]))
    assert code == 0, err
    assert len({record.group for record in read_manifest(tmp_path / "runs/mine/data")}) <= 12


def _one_class(top: Path) -> None:
    (top / "acne").mkdir()
    for number in range(3):
        (top / "acne" / f"{number}.jpg").write_bytes(jpeg(skin(number)))


def _two_classes(top: Path) -> None:
    _one_class(top)
    (top / "acne").rename(top / "rosacea")
    _one_class(top)


BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "absent": (lambda top: top.rmdir(), (), "does not exist"),
    "a file": (lambda top: (top.rmdir(), top.write_text("x")), (), "is a file"),
    "empty": (lambda top: None, (), "is empty"),
    "one class": (_one_class, (), "only one class"),
    "no class folders": (lambda top: (top / "a.jpg").write_bytes(b"\xff\xd8\xff"), (), "no class"),
    "urgency of nothing": (_two_classes, ("--urgency", "acme=urgent"), "not a class of these"),
    "a wrong tier": (
        _two_classes,
        ("--urgency", "acne=now"),
        "has the wrong form; write CLASS=urgent",
    ),
    "another list": (_two_classes, ("--taxonomy", "skin11"), "did you mean"),
    "a list of others": (_two_classes, ("--taxonomy", "ham10000", "--yes"), "does not have"),
    "a wrong pattern": (_two_classes, ("--group-pattern", "(["), "regular expression"),
    "another list, before the look": (lambda top: None, ("--taxonomy", "skin11"), "did you mean"),
    "a pattern without a group": (_two_classes, ("--group-pattern", "P"), "pair of brackets"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    skindx: Skindx, tmp_path: Path, name: str
) -> None:
    make, options, part = BAD[name]
    top, out = tmp_path / "images", tmp_path / "run"
    top.mkdir()
    make(top)
    code, _, err = skindx("new", top, "--out", out, *options)
    assert (code, err.count("\n")) == (2, 1), err
    assert part in err
    assert sorted(path.name for path in tmp_path.iterdir() if path != top) == []


@pytest.mark.parametrize("there", ["a file", "a folder with files", "inside the images"])
def test_an_output_that_cannot_be_written_is_refused_before_the_look(
    skindx: Skindx, images: Path, tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    if there == "a file":
        out.write_text("mine")
    elif there == "a folder with files":
        out.mkdir()
        (out / "recipe.yaml").write_text("mine")
    else:
        out = images / "run"
    code, printed, err = skindx("new", images, "--out", out)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert not (images / "run").exists()
    if there == "a folder with files":
        assert (out / "recipe.yaml").read_text() == "mine"


def test_a_folder_that_may_not_be_listed_is_one_sentence(
    skindx: Skindx, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def refused(path: Path) -> object:
        if path.name == "nevus":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)  # root may list everything
    code, _, err = skindx("new", images, "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "nevus cannot be read (Permission denied)" in err


def test_a_class_of_which_nothing_can_be_read_is_named(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, label: str, bounds: Path | None) -> FolderFile:
        if label == "nevus":  # root may read everything
            return FolderFile(path, label, "unreadable", "Permission denied")
        return look_at(path, label, bounds)

    monkeypatch.setattr(folder_source, "look_at", refused)
    with pytest.raises(UserError, match=r"no image of the class 'nevus' in .* allow your user"):
        look(images)


def test_of_a_large_folder_few_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, opened = jpeg(skin(0, 64, 64)), []
    (tmp_path / "one.jpg").write_bytes(image)
    for label in ("acne", "nevus"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(1500):
            os.link(tmp_path / "one.jpg", tmp_path / "images" / label / f"{number}.jpg")

    def counting(path: Path, label: str, bounds: Path | None) -> FolderFile:
        opened.append(path)
        return look_at(path, label, bounds)

    monkeypatch.setattr(folder_source, "look_at", counting)
    seen = look(tmp_path / "images")
    assert seen.counts == {"acne": 1500, "nevus": 1500}
    assert len(opened) <= 2 * 500
    assert len(seen.sample) == 64
    assert "counted by their names alone" in " ".join(seen.lines())


def test_a_question_is_asked_again_until_the_answer_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["sometimes", " soon "])
    monkeypatch.setattr("typer.prompt", lambda text, default: next(answers))
    assert _Questions(True).ask("--when", "When", "urgent", ["urgent", "soon"]) == "soon"
    assert "'sometimes' is none of urgent, soon" in capsys.readouterr().out
    answers = iter(["(", "P", r"^(P\d+)_"])
    assert _Questions(True).ask("--group-pattern", "Patient", "none") == r"^(P\d+)_"
    said = capsys.readouterr().out
    assert "'(': this is not a valid regular expression" in said
    assert "pair of brackets" in said


def test_only_lists_with_all_classes_are_offered() -> None:
    assert "ham10000" in seen_folder(["melanoma", "nevus"]).known_by()
    assert seen_folder(["melanoma", "no such thing"]).known_by() == []


def test_weights_that_cannot_be_fetched_are_named_before_the_training(
    skindx: Skindx, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
    problem = hub_problem()
    assert "does not answer from here" in problem
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as hub:  # answers 501
        Thread(target=hub.handle_request, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        assert hub_problem() == ""
    timed = replace(timed_network(), pretrained=True, no_hub=problem)
    monkeypatch.setattr(first_estimate, "time_network", lambda *_: timed)
    code, printed, _ = skindx("new", images, "--out", tmp_path / "run", "--pretrained")
    assert code == 0
    assert f"{problem}; connect before it." in printed


def seen_folder(labels: Sequence[str], path: Path = Path("/images")) -> ImageFolder:
    files = [
        FolderFile(path / label / f"{n}.jpg", label, "stored") for label in labels for n in "12"
    ]
    return ImageFolder(path, tuple(files), ())


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1),
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=60), st.just("soon"), max_size=3
    ),
    st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_whatever_names_are_the_files_say_the_same(
    name: str, urgency: dict[str, str], pattern: str
) -> None:
    folder = seen_folder(["a", "b"], Path("/top") / name / "images")
    answers = FirstAnswers(None, urgency, "clinical", pattern, "usual")  # type: ignore[arg-type]
    recipe = yaml.safe_load(recipe_text(name, folder, answers))
    source = recipe["sources"][0]
    assert (recipe["name"], recipe["urgency"], source["group_pattern"]) == (name, urgency, pattern)
    assert source["path"] == str(folder.path.resolve())
    member = {"name": "m", "model": name, "weights": pattern}
    config = yaml.safe_load(config_text(name, folder, answers, member, pretrained=True))
    assert config["members"] == [member]


def test_patients_in_file_names_are_seen_and_dates_are_not() -> None:
    def pattern(names: Sequence[str]) -> str:
        files = tuple(FolderFile(Path(name), "a", "stored") for name in names)
        return ImageFolder(Path("x"), files, ()).group_pattern

    assert pattern([f"P{n // 2}_{n}.jpg" for n in range(12)]) == r"^([A-Za-z]*\d+)[_-]"
    assert pattern([f"ISIC_{n:07d}.jpg" for n in range(12)]) == ""
    assert pattern([f"201901{n // 2:02d}_{n}.jpg" for n in range(12)]) == ""


def test_a_training_is_estimated_by_hand() -> None:
    """100 images, 60 of them in train: 8 steps of 8 take 0.3 s an image and 0.5 s each."""
    folder = seen_folder([str(n) for n in range(50)])
    batch = batch_of(folder.images)
    build, train, evaluate = estimates(
        folder, timed_network(), batch=16, epochs=2, frozen=False, cores=2
    )
    assert batch == 16
    steps, step_s, validation_s = 4, 16 * 0.3 + 0.5, 10 * 0.1
    start_s, passes = first_estimate.TRAIN
    by_hand = 2 * (steps * step_s + validation_s) + start_s + passes * 100 * 0.1
    assert train.seconds == pytest.approx(by_hand, rel=1e-6)
    assert train.memory_bytes >= 10**9
    start_s, each_s = first_estimate.BUILD
    assert build.seconds == pytest.approx(start_s + each_s * folder.images / 2)  # screened at once
    start_s, passes = first_estimate.EVALUATE
    assert evaluate.seconds == pytest.approx(start_s + passes * 20 * 0.1)
    _, head, _ = estimates(folder, timed_network(), batch=16, epochs=40, frozen=True, cores=2)
    start_s, passes = first_estimate.TRAIN
    assert head.seconds == pytest.approx(start_s + (passes + 4) * 100 * 0.1)


def test_a_quick_training_from_weights_trains_the_last_layer(tmp_path: Path) -> None:
    answers = FirstAnswers(None, {}, "clinical", "", "quick")
    member = {"name": "m", "model": "test_resnet", "pretrained": True, "preprocess": {"size": 64}}
    (tmp_path / "config.yaml").write_text(
        config_text("mine", seen_folder("ab"), answers, member, pretrained=True)
    )
    settings = TrainSettings.load(tmp_path / "config.yaml", [])
    [first] = settings.members
    assert (first.trunk, first.views, first.pretrained, settings.recipe.epochs) == (
        *("frozen", 4, True, 40),
    )
    random = yaml.safe_load(
        config_text("mine", seen_folder("ab"), answers, SMALL, pretrained=False)
    )
    assert "trunk" not in random["members"][0]


def test_weights_that_training_fetches_are_named_and_none_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    _, member, *rest, no_hub = first_estimate._timed("test_resnet", 64, 8, 2, True, 0.1)
    assert (member["model"], member["pretrained"], *rest) == ("test_resnet", True, True)
    assert "http://127.0.0.1:1 does not answer" in no_hub
    with pytest.raises(UserError, match="timm has no pretrained weights for 'resnet9'"):
        first_estimate._timed("resnet9", 64, 8, 2, True, 0.1)


def test_a_network_is_timed_and_a_wrong_one_is_a_sentence() -> None:
    steps, member, pretrained, no_hub = first_estimate._timed(
        *("test_resnet", 64, 8, 2, False, 0.1)
    )
    assert no_hub == ""
    assert (member["model"], member["preprocess"]["size"], pretrained) == ("test_resnet", 64, False)
    assert [(images, bytes_ > 0) for images, _, bytes_ in steps["points"]] == [(2, True), (4, True)]
    assert steps["points"][-1][1] > steps["forward_s"] > 0
    with pytest.raises(UserError, match="no_such_net"):
        first_estimate._timed("no_such_net", 64, 8, 2, False, 0.1)


@pytest.fixture(scope="module")
def ham(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a look-alike of HAM10000: 12 lesions of two images, a file of part 1 twice."""
    top = tmp_path_factory.mktemp("kaggle") / "skin cancer"
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for number in range(24):
        lesion, label = number // 2, ("nv", "mel")[number // 2 % 2]
        name = f"ISIC_00{number:05d}"
        lines.append(f"HAM_00000{lesion:02d},{name},{label},histo,{20 + number}.0,female,back")
        for part in (f"HAM10000_images_part_{1 + number % 2}", "ham10000_images_part_1"):
            if part[:3] == "HAM" or number == 0:
                (top / part).mkdir(parents=True, exist_ok=True)
                (top / part / f"{name}.jpg").write_bytes(jpeg(skin(number)))
    lines.append("HAM_0000099,ISIC_0099999,mel,histo,60.0,male,back")
    (top / "hmnist_8_8_L.csv").write_text("pixel0000,label\n1,2\n")
    (top / "table.csv").write_text("\n".join(lines))
    return top


def test_ham10000_is_recognised_by_its_table_and_its_recipe_builds(
    skindx: Skindx, ham: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, err = skindx("new", ham, "--out", "run", "--yes")
    assert code == 0, err
    assert "is HAM10000 (10,015 images, 7,470 lesions, CC BY-NC 4.0) by the columns of" in printed
    assert "24 images in 2 classes; 12 each." in printed
    assert "12 groups that no split divides." in printed
    assert "1 of its lines name files that are not there, such as ISIC_0099999.jpg." in printed
    assert "--group-pattern" not in printed
    code, _, err = skindx("build", "run/recipe.yaml", "--out", "run/data")
    assert code == 0, err
    with (Path(__file__).parents[2] / "data/ham10000-splits.csv").open() as file:
        frozen = {row["group"]: row["split"] for row in csv.DictReader(file)}
    records = read_manifest(tmp_path / "run/data")
    assert {record.group for record in records} == {f"HAM_00000{n:02d}" for n in range(12)}
    assert all(record.split == frozen[record.group] for record in records)
    assert {record.label for record in records} == {"Nevus", "Melanoma"}
    assert {record.confirmed_by for record in records} == {"histopathology"}
    assert {(record.sex, record.site) for record in records} == {("female", records[0].site)}
    assert {record.licence for record in records} == {"CC BY-NC 4.0"}


def test_the_parts_of_ham10000_without_its_table_are_no_classes(
    skindx: Skindx, ham: Path, tmp_path: Path
) -> None:
    top = tmp_path / "parts"
    for part in ("HAM10000_images_part_1", "HAM10000_images_part_2"):
        shutil.copytree(ham / part, top / part)
    for verb in ("new", "build"):
        code, _, err = skindx(verb, top, "--out", tmp_path / "out")
        assert (code, err.count("\n")) == (2, 1)
        assert "have names of dataset parts, not of classes" in err
    assert not (tmp_path / "out").exists()


def test_archives_without_images_are_named(skindx: Skindx, ham: Path, tmp_path: Path) -> None:
    (tmp_path / "HAM10000_metadata").write_bytes((ham / "table.csv").read_bytes())
    (tmp_path / "HAM10000_images_part_1.zip").touch()
    code, _, err = skindx("new", tmp_path, "--out", tmp_path.parent / "zipped")
    assert (code, err.count("\n")) == (2, 1)
    assert "names 25 images of HAM10000" in err
    assert "or in HAM10000_images_part_1.zip; put the images there" in err
