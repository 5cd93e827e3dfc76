from skindx.core.text import differences

_NAMES = {"member.recipe": "", "member": "members", "manifest": "the dataset's manifest"}


def test_the_keys_that_differ_are_named_with_their_values() -> None:
    before = {
        "member": {"seed": 0, "recipe": {"epochs": 2}},
        "recipe": {"epochs": 2, "ema": None, "mix": {"mixup": 0.1}},
        "manifest": "0" * 64,
    }
    now = {
        "member": {"seed": 1, "recipe": {"epochs": 3}},
        "recipe": {"epochs": 3, "ema": {"decay": 0.9}, "mix": {"mixup": 0.1}},
        "manifest": "1" * 64,
    }
    assert differences(before, now, _NAMES) == (
        "members.seed was 0 and is 1, recipe.epochs was 2 and is 3, "
        "recipe.ema was none and is {'decay': 0.9} and 1 more"
    )
    assert differences({**now, "manifest": "0"}, now, _NAMES) == "the dataset's manifest"
    assert differences({"a": 1, "b": 2}, {"a": 1}) == "b was 2 and is none"
    assert differences(None, now) == "an older version wrote it, which did not keep which"
