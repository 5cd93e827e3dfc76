from pathlib import Path

import pytest
import timm
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.loader.batches import learning, partition
from skindx.data.manifest import SPLITS, Record
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.member_refs import member_refs, out_of_fold_P, units

MEMBER = {"name": "m", "model": "test_resnet"}


def _record(number: int, group: int, label: str, split: str) -> Record:
    return Record(f"{number}.jpg", f"{number:064d}", "0" * 16, 9, 9, label, f"g{group}", split)


RECORDS = [
    _record(number, number // 2, "ab"[number // 2 % 2], SPLITS[number // 2 % 4])
    for number in range(80)
]


def _settings(members: list[dict[str, object]], **more: object) -> TrainSettings:
    return TrainSettings.parse({"members": members, **more})


@given(
    st.lists(
        st.tuples(st.integers(0, 25), st.sampled_from("abc"), st.sampled_from(SPLITS)),
        min_size=1,
        max_size=60,
    ),
    st.integers(2, 6),
)
def test_folds_keep_groups_whole(drawn: list[tuple[int, str, str]], folds: int) -> None:
    split_of_group: dict[int, str] = {}
    records = [
        _record(number, group, label, split_of_group.setdefault(group, split))
        for number, (group, label, split) in enumerate(drawn)
    ]
    pool, validated = learning(records), []
    for fold in range(folds):
        train, held = partition(records, fold, folds)
        assert {image.group for image in train}.isdisjoint(image.group for image in held)
        assert [image for image in pool if image in train or image in held] == pool
        assert len(train) + len(held) == len(pool)
        validated += held
    assert sorted(validated, key=lambda each: int(each.path[:-4])) == pool
    assert all(image.split in ("train", "val") for image in pool)


def test_without_a_fold_the_splits_stand() -> None:
    train, held = partition(RECORDS, None, 5)
    assert {image.split for image in train} == {"train"}
    assert {image.split for image in held} == {"val"}


def test_each_fold_is_a_member() -> None:
    settings = _settings([{**MEMBER, "fold": "each", "seed": 3}], folds=3)
    assert [(m.name, m.fold, m.seed) for m in settings.members] == [
        ("m-fold0", 0, 3),
        ("m-fold1", 1, 3),
        ("m-fold2", 2, 3),
    ]
    assert TrainSettings.parse(settings.model_dump(mode="json")) == settings


def test_what_no_unit_trained_on() -> None:
    settings = _settings([{**MEMBER, "fold": "each"}, {**MEMBER, "name": "plain"}], folds=3)
    found = units(member_refs(Path("run"), settings), RECORDS)
    assert [list(unit) for unit in found.values()] == [["m-fold0", "m-fold1", "m-fold2"], ["plain"]]
    pool = learning(RECORDS)
    chosen = out_of_fold_P(found)
    assert [image.split == "val" for image in pool] == chosen.tolist()
    folds_only = _settings([{**MEMBER, "fold": "each"}], folds=3)
    assert out_of_fold_P(units(member_refs(Path("run"), folds_only), RECORDS)).all()


def test_members_without_a_common_held_out_image_are_refused() -> None:
    folds = [{**MEMBER, "fold": 0}, {**MEMBER, "name": "n", "model": "test_vit", "fold": 1}]
    settings = _settings(folds)
    with pytest.raises(UserError, match="temperature of the members m, n can be fitted"):
        units(member_refs(Path("run"), settings), RECORDS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"members": []}, "an ensemble needs at least one member"),
        (
            {"members": [MEMBER], "soups": [{"name": "s", "of": ["m"]}]},
            "soups was removed in skindx 1.0, because measurements showed no gain; keep",
        ),
        (
            {"members": [MEMBER], "distil": {"student": MEMBER}},
            "distil was removed in skindx 1.0, because measurements showed no gain; train",
        ),
        (
            {"members": [{**MEMBER, "snapshots": 2}]},
            "snapshots was removed .* remove it",
        ),
        (
            {"members": [{**MEMBER, "trunk": "lora"}]},
            "trunk=lora was removed in skindx 1.0, because measurements showed no gain; use",
        ),
        (
            {"members": [MEMBER], "reused": [{"run": "r", "member": "m"}]},
            "give each member its own name",
        ),
        ({"members": [{**MEMBER, "fold": 5}]}, "has fold=5, but folds=5 allows only 0 to 4"),
        ({"members": [MEMBER], "ensemble": {"combine": {"kind": "median"}}}, "'median'"),
        ({"members": [{**MEMBER, "views": 3}]}, "views"),
    ],
)
def test_mistakes_are_one_sentence(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse(settings)
    assert "\n" not in str(caught.value)


def test_a_run_that_is_not_there_is_reported(tmp_path: Path) -> None:
    settings = TrainSettings.parse({"reused": [{"run": str(tmp_path), "member": "m"}]})
    assert settings.members == ()
    with pytest.raises(UserError, match="is not a run"):
        member_refs(Path("run"), settings)
    config = tmp_path / "config.yaml"
    _settings([{**MEMBER, "seed": 7}]).save(config)
    planned = TrainSettings.parse(
        {"reused": [{"run": str(tmp_path), "member": "m", "config": str(config)}]}
    )
    assert member_refs(Path("run"), planned)["m"].member.seed == 7
    _settings([MEMBER]).save(tmp_path / "train.yaml")
    assert member_refs(Path("run"), settings)["m"].member.name == "m"
    other = TrainSettings.parse({"reused": [{"run": str(tmp_path), "member": "x"}]})
    with pytest.raises(UserError, match=r"has no member 'x'; set reused.member to one of m"):
        member_refs(Path("run"), other)


def test_only_what_decides_weights_is_in_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "manifest.parquet").write_bytes(b"x")
    plain = _settings([MEMBER])

    def mark(change: dict[str, object], **more: object) -> str:
        settings = _settings([{**MEMBER, **change}], **more)
        return fingerprint(settings, settings.members[0], tmp_path)

    same = fingerprint(plain, plain.members[0], tmp_path)
    assert mark({"views": 8}) == same
    assert mark({}, folds=7, ensemble={"combine": {"kind": "vote"}}) == same
    others = [mark({"fold": 0}), mark({"fold": 1}), mark({"fold": 0}, folds=7)]
    assert mark({"snapshots": 0, "targets": None, "lora": {"rank": 4}}) == same  # of 0.2
    assert len({same, *others}) == 4


def test_the_committed_ensemble_is_sound() -> None:
    settings = TrainSettings.load(Path(__file__).parents[2] / "configs" / "ensemble-skin10.yaml")
    trained = member_refs(Path("run"), settings)
    found = units(trained, RECORDS)
    assert [len(unit) for unit in found.values()] == [5, 1]
    assert out_of_fold_P(found).any()
    for member in settings.members:
        assert timm.get_pretrained_cfg(member.model).has_weights
