"""Settings that cannot work are refused in one sentence before a training begins."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Skindx

from skindx.core.errors import UserError
from skindx.data.manifest import Record, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.models.classifier.classifier import build_classifier
from skindx.models.classifier.network_setup import shapes_only
from skindx.taxonomy import Taxonomy
from skindx.training.checks import check, check_smallest_step
from skindx.training.config.run import TrainSettings
from skindx.training.run import only_training, put_back_if_refused, train

SMALL = {"members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": {"augment": {"scale": [0, 0]}}}, "both above 0 and at most 1"),
        ({"recipe": {"augment": {"scale": [-1, -0.5]}}}, "both above 0 and at most 1"),
        ({"recipe": {"augment": {"scale": [1.0, 0.2]}}}, r"two shares \[smallest, largest\]"),
        ({"recipe": {"augment": {"scale": [0.5, 3]}}}, "both above 0 and at most 1"),
        ({"engine": {"parallel": {"kind": "cubes"}}}, "engine.parallel"),
        (
            {"engine": {"parallel": {"kind": "model"}}},
            "engine.parallel=model was removed in skindx 1.0, because a pipeline of stages",
        ),
        ({"exchange": {"kind": "hierarchical", "ranks_per_node": 0}}, "ranks_per_node"),
        ({"exchange": {"kind": "hierarchical", "ranks_per_node": -1}}, "ranks_per_node"),
        ({"recipe": {"epochs": 1, "warmup_epochs": 50}}, "warmup_epochs=50 is longer"),
        ({"recipe": {"epochs": 3, "mix": {"clean_epochs": 3}}}, "leaves no epoch of epochs=3"),
        ({"recipe": {"schedule": {"kind": "steps", "epochs": [5, 3]}}}, "ascending"),
        ({"recipe": {"schedule": {"kind": "steps", "epochs": [0]}}}, "schedule"),
        ({"recipe": {"learning_rate": float("inf")}}, "finite number"),
        ({"recipe": {"head_learning_rate": float("inf")}}, "finite number"),
        ({"recipe": {"loss": {"kind": "focal", "gamma": float("nan")}}}, "finite|greater"),
        ({"engine": {"timeout_s": float("inf")}}, "finite number"),
        ({"detector": {"epochs": 1, "warmup_epochs": 2}}, "warmup_epochs=2 is longer"),
        ({"detector": {"seed": -1}}, "seed"),
        ({"members": [{"name": "a", "model": "x", "preprocess": {"mean": [0, 0, float("nan")]}}]},
         "finite number"),
        ({"members": [{"name": "a", "model": "test_resnet", "seed": -1}]}, "seed"),
    ],
)  # fmt: skip
def test_values_that_cannot_work(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({**SMALL, **change})
    assert "\n" not in str(caught.value)


def test_the_command_line_refuses_a_key_that_stands_twice(
    skindx: Skindx, small_dataset: Path, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        f"{yaml.safe_dump(SMALL)}recipe: {{epochs: 2}}\nname: x\nrecipe: {{batch: 8}}\n"
    )
    code, _, err = skindx("train", small_dataset, "--config", file, "--out", tmp_path / "run")
    assert code == 2
    assert re.fullmatch(r"error: .*'recipe' is on line 6 and again on line 8; .*\n", err)
    assert not (tmp_path / "run").exists()
    code, _, err = skindx(
        "train", small_dataset, "--out", tmp_path / "run", "--set", "recipe={epochs: 2, epochs: 3}"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "'epochs' is on line 1 and again" in err


def test_a_build_refuses_what_keeps_no_image() -> None:
    raw = {"name": "x", "sources": [{"kind": "folder", "path": "x"}]}
    for change, said in (
        ({"screen": {"min_luminance": 200, "max_luminance": 100}}, "every image is excluded"),
        ({"targets": {"Melanoma": 0}}, "targets.Melanoma"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(UserError, match=said):
            BuildSettings.parse({**raw, **change})


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_without_images_of_a_split_is_named(small_dataset: Path, split: str) -> None:
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    records = [
        replace(record, split="test") if (record.label, record.split) == ("Disc", split) else record
        for record in read_manifest(small_dataset)
    ]
    settings = TrainSettings.parse({**SMALL, "recipe": {"batch": 8}})
    with pytest.raises(UserError, match=rf"the {split} images have no image of the class 'Disc'"):
        check(settings, records, taxonomy)


def test_a_round_that_is_longer_than_an_epoch_is_named(small_dataset: Path) -> None:
    taxonomy, records = Taxonomy.load(small_dataset / "taxonomy.yaml"), read_manifest(small_dataset)
    local = {"recipe": {"batch": 8}, "exchange": {"kind": "local", "steps": 8}}
    with pytest.raises(UserError, match=r"exchange.steps=8 is more than the 7 steps of an epoch"):
        check(TrainSettings.parse({**SMALL, **local}), records, taxonomy)


@pytest.mark.parametrize(
    ("settings", "variables", "said"),
    [
        (
            {"exchange": {"ranks_per_node": 4}},
            {},
            r"exchange\.ranks_per_node=4 is more than the number of ranks",
        ),
        (
            {"exchange": {"ranks_per_node": 2}},
            {},
            "ranks_per_node=2 is not a divisor of the number of ranks",
        ),
        ({"exchange": {"ranks_per_node": 3}}, {}, ""),
        ({"exchange": {}}, {}, "all 3 ranks are on one host; set exchange.ranks_per_node to"),
        ({"engine": {"ranks": 1}, "exchange": {}}, {}, "the only rank is on one"),
        *(
            ({"engine": {"ranks": "auto"}, "exchange": {}}, {"WORLD_SIZE": "4", **more}, said)
            for more, said in (
                ({"LOCAL_WORLD_SIZE": "2"}, ""),
                ({"LOCAL_SIZE": "4"}, "all 4 ranks are on one"),
                ({}, ""),
            )
        ),
        ({}, {"WORLD_SIZE": "3"}, ""),
        (
            {},
            {"WORLD_SIZE": "2"},
            r"3, but the launcher \(Slurm's srun, torchrun\) has started 2 ranks in all",
        ),
        ({}, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}, "2 ranks on this machine; set"),
        ({}, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}, ""),
        ({}, {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}, ""),
        ({}, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"}, "has started 4 ranks on this machine"),
    ],
)
def test_ranks_that_are_started_fit_the_settings(
    small_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    variables: dict[str, str],
    said: str,
) -> None:
    taxonomy, records = Taxonomy.load(small_dataset / "taxonomy.yaml"), read_manifest(small_dataset)
    for name, value in ({"RANK": "0"} | variables if variables else {}).items():
        monkeypatch.setenv(name, value)
    raw = {**SMALL, "engine": {"accelerator": "cpu", "ranks": 3}, **settings}
    if "exchange" in settings:
        raw |= {"exchange": {"kind": "hierarchical", **settings["exchange"]}}
    checked = TrainSettings.parse({"recipe": {"batch": 24}, **raw})
    with pytest.raises(UserError, match=said) if said else nullcontext():
        check(checked, records, taxonomy)


def test_a_label_outside_the_taxonomy_is_named(small_dataset: Path) -> None:
    records = read_manifest(small_dataset)
    records[0] = replace(records[0], label="../../x")
    settings = TrainSettings.parse({**SMALL, "recipe": {"batch": 8}})
    with pytest.raises(UserError, match=r"'\.\./\.\./x', but its"):
        check(settings, records, Taxonomy.load(small_dataset / "taxonomy.yaml"))


def test_a_class_that_a_fold_cannot_learn_is_named(small_dataset: Path) -> None:
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    records = [
        replace(record, group="one") if record.label == "Disc" else record
        for record in read_manifest(small_dataset)
    ]
    member = {**SMALL["members"][0], "fold": "each"}
    settings = TrainSettings.parse({"members": [member], "folds": 3, "recipe": {"batch": 8}})
    with pytest.raises(UserError, match=r"training images of fold \d have no image of the class"):
        check(settings, records, taxonomy)


@pytest.mark.parametrize(
    ("change", "learned", "said"),
    [
        ({"engine": {"ranks": 2}}, 54, r"set recipe.batch=5, or lower engine.ranks"),
        ({"recipe": {"accumulate": 2}}, 54, r"set recipe.batch=5, or lower recipe.accumulate"),
        ({"recipe": {"batch": 2}}, 3, r"set recipe.batch=3"),
        (
            {"engine": {"ranks": 2}, "loader": {"sharded": True}},
            55,
            r"set recipe.batch=5, or lower engine.ranks",
        ),
        ({"engine": {"ranks": 2}}, 56, ""),
        ({"engine": {"ranks": 2, "sync_batch_norm": True}}, 54, ""),
        ({"engine": {"ranks": 2}, "members": [{"name": "m", "model": "test_vit"}]}, 54, ""),
        ({"engine": {"ranks": 2}, "members": [{"name": "m", "model": "test_resnet"}]}, 54, ""),
    ],
)
def test_a_batch_norm_gets_two_images_in_the_smallest_step(
    change: dict[str, Any], learned: int, said: str
) -> None:
    """A map of one pixel of a single image has no variance; a larger map of it has."""
    settings = TrainSettings.parse(
        {
            "members": [{"name": "m", "model": "test_efficientnet", "preprocess": {"size": 32}}],
            **change,
            "recipe": {"batch": 4, "epochs": 2, "warmup_epochs": 1, **change.get("recipe", {})},
            "engine": {"accelerator": "cpu", **change.get("engine", {})},
        }
    )
    (member,), ranks = settings.members, settings.engine.ranks
    with shapes_only():
        classifier = build_classifier(member, 3)
    records = [Record("x", "0", "0" * 16, 9, 9, "a", "g", "train")] * learned
    ranks = 1 if ranks == "auto" else ranks
    if not said:
        check_smallest_step(settings, member, classifier, records, ranks=ranks)
        return
    with pytest.raises(UserError, match=said):
        check_smallest_step(settings, member, classifier, records, ranks=ranks)


def test_a_dataset_whose_cancer_has_no_urgency_is_to_be_built_again(
    small_dataset: Path, tmp_path: Path
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    (data / "manifest.parquet").write_bytes((small_dataset / "manifest.parquet").read_bytes())
    raw = {"name": "t", "title": "T", "classes": [{"key": "melanoma", "name": "melanoma"}]}
    Taxonomy.parse(raw).save(data / "taxonomy.yaml")
    with pytest.raises(UserError, match=r"'melanoma' looks like a cancer .*--out"):
        train(data, TrainSettings.parse(SMALL), run)
    assert not run.exists()


def test_a_single_class_is_nothing_to_tell_apart(small_dataset: Path) -> None:
    records = [one for one in read_manifest(small_dataset) if one.label == "Disc"]
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    alone = replace_classes(taxonomy, taxonomy.classes[:1])
    with pytest.raises(UserError, match=r"only one class \(Disc\)"):
        check(TrainSettings.parse({**SMALL, "recipe": {"batch": 4}}), records, alone)


def replace_classes(taxonomy: Taxonomy, classes: tuple[Any, ...]) -> Taxonomy:
    return taxonomy.model_copy(update={"classes": classes})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"hostfile": "binary"}}, "hostfile .*binary cannot be read .it is no text"),
        ({"engine": {"hostfile": "hosts"}}, "'two words'; write it like `host slots=2`"),
        (
            {"engine": {"hostfile": "one"}},
            "recipe.batch=9 does not fit the dataset; set it from 16",
        ),
    ],
)
def test_files_that_cannot_be_read_are_named_before_anything_is_written(
    small_dataset: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "hosts").write_text("two words\n")
    (tmp_path / "one").write_text("# here\nlocalhost slots=8\n")
    if "engine" in change:
        change = {"engine": {"hostfile": tmp_path / change["engine"]["hostfile"]}}
    settings = TrainSettings.parse({**SMALL, "recipe": {"batch": 9}, **change})
    with pytest.raises(UserError, match=said):
        train(small_dataset, settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_training_of_a_run_is_refused_and_changes_nothing(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    settings = TrainSettings.parse({**SMALL, "recipe": {"batch": 9}})
    with only_training(run):
        (run / "train.yaml").write_text("of the first")
        with pytest.raises(UserError, match=r"another training is running in .*run"):
            train(small_dataset, settings, run)
        assert [file.name for file in run.iterdir()] == ["train.yaml"]
        assert (run / "train.yaml").read_text() == "of the first"
        monkeypatch.setenv("RANK", "1")  # the first rank of a launcher holds the run for all
        with only_training(run) as there:
            assert there


def test_a_run_that_was_held_and_stayed_empty_is_not_there(tmp_path: Path) -> None:
    with only_training(tmp_path / "a" / "run") as there:
        assert not there
    assert not (tmp_path / "a" / "run").exists()


def _begin_and_refuse(run: Path, made: Path) -> None:
    with put_back_if_refused(run, there=run.exists()):
        (run / "checkpoints").mkdir(parents=True)
        (run / "train.yaml").write_text("new")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("{}")
        raise UserError("no")


@pytest.mark.parametrize("there", [False, True])
def test_a_training_that_its_ranks_refuse_leaves_the_run_as_it_was(
    tmp_path: Path, there: bool
) -> None:
    run = tmp_path / "run"
    if there:
        (run / "members" / "a").mkdir(parents=True)
        (run / "train.yaml").write_text("old")
        (run / "members" / "a" / "member.json").write_text("{}")
    with pytest.raises(UserError):
        _begin_and_refuse(run, run / "plan.json")
    assert run.exists() == there
    if there:
        assert (run / "train.yaml").read_text() == "old"
        assert not (run / "plan.json").exists()
        assert (run / "members" / "a" / "member.json").exists()


def test_a_training_that_has_made_something_keeps_it(tmp_path: Path) -> None:
    made = tmp_path / "run" / "checkpoints" / "a" / "epoch-0001-step-000000" / "index.json"
    with pytest.raises(UserError):
        _begin_and_refuse(tmp_path / "run", made)
    assert made.exists()
    assert (tmp_path / "run" / "train.yaml").read_text() == "new"
