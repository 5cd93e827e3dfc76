"""What the package says of its search is pooled from what the bench wrote."""

from skindx.data.summary import false_links, measured_recall, recall_sentence
from skindx_bench.data.clean_recall import pooled


def test_runs_are_pooled_by_kind() -> None:
    def run(found: int) -> dict[str, object]:
        figure = {"value": found / 20, "n": 20}
        figures = {
            "copies_recall_crop_5": figure,
            "copies_ap_skindx": {"value": 0.5, "n": 20},
            "false_links": {"value": 20 - found, "n": 30},
        }
        return {"figures": figures, "date": "2026-01-01", "versions": {"skindx": "1"}}

    answer = pooled([run(20), run(17)])
    assert answer["recall"].keys() == {"crop_5"}
    recall = answer["recall"]["crop_5"]
    assert (recall["found"], recall["n"]) == (37, 40)
    assert answer["false_links"] == {"false": 3, "links": 60}
    assert 0.79 < recall["low"] < 37 / 40 < recall["high"] < 0.99


def test_the_sentence_names_what_is_not_always_found() -> None:
    said = recall_sentence()
    for kind, row in measured_recall().items():
        named = f" of {kind.replace('_', ' ')} [" in said
        assert named == (row["found"] < row["n"])
    false, links = false_links()
    assert f"{false or 'none'} of its {links:,} links" in said
