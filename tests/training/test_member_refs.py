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
from skindx.training.ensembles.member_refs import check_soup, member_refs, out_of_fold_P, units

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
    found = units(settings, member_refs(Path("run"), settings), RECORDS)
    assert [list(unit) for unit in found.values()] == [["m-fold0", "m-fold1", "m-fold2"], ["plain"]]
    pool = learning(RECORDS)
    chosen = out_of_fold_P(found)
    assert [image.split == "val" for image in pool] == chosen.tolist()
    folds_only = _settings([{**MEMBER, "fold": "each"}], folds=3)
    assert out_of_fold_P(units(folds_only, member_refs(Path("run"), folds_only), RECORDS)).all()


def test_members_without_a_common_held_out_image_are_refused() -> None:
    folds = [{**MEMBER, "fold": 0}, {**MEMBER, "name": "n", "model": "test_vit", "fold": 1}]
    settings = _settings(folds)
    with pytest.raises(UserError, match="no image that none of m, n trained on"):
        units(settings, member_refs(Path("run"), settings), RECORDS)
    soup = _settings(
        [{**MEMBER, "fold": 0}, {**MEMBER, "name": "n", "fold": 1}],
        soups=[{"name": "s", "of": ["m", "n"]}],
    )
    with pytest.raises(UserError, match=r"soup s: .*different folds"):
        units(soup, member_refs(Path("run"), soup), RECORDS)


def test_a_soup_takes_the_place_of_its_ingredients() -> None:
    members = [MEMBER, {**MEMBER, "name": "n"}, {**MEMBER, "name": "o"}]
    soups = [{"name": "s", "of": ["m", "n"]}, {"name": "t", "of": ["m", "o"], "instead": False}]
    settings = _settings(members, soups=soups)
    assert list(units(settings, member_refs(Path("run"), settings), RECORDS)) == ["o", "s", "t"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "test_vit"}, "has model test_resnet and n test_vit"),
        ({"seed": 1}, "has seed 0 and n 1"),
        ({"preprocess": {"size": 64}}, "has preprocess"),
    ],
)
def test_soups_are_of_one_start(change: dict[str, object], said: str) -> None:
    soups = [{"name": "s", "of": ["m", "n"]}]
    settings = _settings([MEMBER, {**MEMBER, "name": "n", **change}], soups=soups)
    with pytest.raises(UserError, match=said):
        check_soup(settings.soups[0], member_refs(Path("run"), settings))


def test_from_given_weights_heads_may_differ() -> None:
    given_weights = {**MEMBER, "weights": "some.safetensors"}
    members = [given_weights, {**given_weights, "name": "n", "seed": 1}]
    settings = _settings(members, soups=[{"name": "s", "of": ["m", "n"]}])
    check_soup(settings.soups[0], member_refs(Path("run"), settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"members": []}, "an ensemble needs a member"),
        (
            {"members": [MEMBER], "soups": [{"name": "s", "of": ["x"]}]},
            "soup s is made of 'x', but the members are m",
        ),
        (
            {"members": [MEMBER], "reused": [{"run": "r", "member": "m"}]},
            "every member needs a name of its own",
        ),
        ({"members": [{**MEMBER, "fold": 5}]}, "has fold 5, but of 5 folds the last is 4"),
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
    with pytest.raises(UserError, match="is no run"):
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
    with pytest.raises(UserError, match="trains no member 'x'; it has m"):
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
    assert len({same, *others, mark({"snapshots": 2})}) == 5


def test_the_committed_ensemble_is_sound() -> None:
    settings = TrainSettings.load(Path(__file__).parents[2] / "configs" / "ensemble-skin10.yaml")
    trained = member_refs(Path("run"), settings)
    for soup in settings.soups:
        check_soup(soup, trained)
    found = units(settings, trained, RECORDS)
    assert [len(unit) for unit in found.values()] == [5, 1]
    assert out_of_fold_P(found).any()
    assert settings.distil is not None
    for member in [*settings.members, settings.distil.student]:
        assert timm.get_pretrained_cfg(member.model).has_weights
