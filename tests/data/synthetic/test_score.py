import pytest
from site_score import FaultScore, score_build

from skindx.data.manifest import Issue
from skindx.data.synthetic.site import ServedImage, SiteTruth

ORIGIN = "http://127.0.0.1:1"


@pytest.fixture
def truth() -> SiteTruth:
    """Return a site of one exact pair, one near triple, one conflicting near pair, two alone."""
    shown = {
        "/e1": ("x", "E"),
        "/e2": ("x", "E"),
        "/n1": ("y", "N1"),
        "/n2": ("y", "N2"),
        "/n3": ("y", "N3"),
        "/c1": ("x", "C1"),
        "/c2": ("y", "C2"),
        "/a": ("x", "A"),
        "/b": ("x", "B"),
    }
    return SiteTruth(
        per_class=2,
        seed=0,
        distinct=4,
        pictures={
            path: ServedImage(label=label, sha256=sha) for path, (label, sha) in shown.items()
        },
        dead_links=("/d1", "/d2", "/d3", "/d4"),
        exact_groups=(("/e1", "/e2"),),
        near_groups=(("/n1", "/n2", "/n3"), ("/c1", "/c2")),
        not_pictures=("/p",),
        disallowed=("/private/q",),
    )


def issue(path: str, reason: str, kept: str = "") -> Issue:
    return Issue(ORIGIN + path, "", "", reason, "", kept)


def scored(truth: SiteTruth, *issues: Issue) -> dict[str, tuple[int, int, int]]:
    scores = score_build(truth, issues, ORIGIN)
    return {score.name: (score.planted, score.reported, score.true_reported) for score in scores}


def test_a_perfect_build(truth: SiteTruth) -> None:
    scores = score_build(
        truth,
        [
            *(issue(f"/d{n}", "dead-link") for n in (1, 2, 3, 4)),
            issue("/p", "not-a-picture"),
            issue("/private/q", "robots"),
            issue("/e2", "exact-duplicate", "E"),
            issue("/n1", "near-duplicate", "N2"),
            issue("/n3", "near-duplicate", "N2"),
            issue("/c1", "conflicting-duplicate"),
            issue("/c2", "conflicting-duplicate"),
        ],
        ORIGIN,
    )
    planted = {score.name: score.planted for score in scores}
    assert planted == {
        "dead-link": 4,
        "not-a-picture": 1,
        "robots": 1,
        "exact-duplicate": 1,
        "near-duplicate": 2,
        "conflicting-duplicate": 2,
    }
    assert all(score.precision == score.recall == 1 for score in scores)


def test_precision_and_recall_by_hand(truth: SiteTruth) -> None:
    scores = score_build(
        truth,
        [
            issue("/d1", "dead-link"),
            issue("/d2", "dead-link"),
            issue("/a", "dead-link"),
            issue("/n2", "near-duplicate", "N1"),
            issue("/n3", "near-duplicate", "A"),  # dropped for another image
            issue("/b", "near-duplicate", "A"),  # no duplicate at all
            issue("/a", "near-duplicate", "A"),
        ],
        ORIGIN,
    )
    dead = next(score for score in scores if score.name == "dead-link")
    near = next(score for score in scores if score.name == "near-duplicate")
    assert (dead.precision, dead.recall) == (2 / 3, 1 / 2)
    assert (near.precision, near.recall) == (1 / 4, 1 / 2)


def test_nothing_reported_is_precise_but_recalls_nothing(truth: SiteTruth) -> None:
    for score in score_build(truth, [], ORIGIN):
        assert (score.precision, score.recall) == (1, 0)
    assert FaultScore("dead-link", planted=0, reported=0, true_reported=0).recall == 1


def test_dropping_every_member_of_a_group_is_not_all_true(truth: SiteTruth) -> None:
    found = scored(
        truth,
        issue("/n1", "near-duplicate", "N2"),
        issue("/n2", "near-duplicate", "N3"),
        issue("/n3", "near-duplicate", "N1"),
    )
    assert found["near-duplicate"] == (2, 3, 2)


def test_an_image_kept_for_itself_is_no_duplicate(truth: SiteTruth) -> None:
    assert scored(truth, issue("/n1", "near-duplicate", "N1"))["near-duplicate"] == (2, 1, 0)


def test_half_of_a_conflict_reported_as_a_plain_duplicate_is_false(truth: SiteTruth) -> None:
    found = scored(truth, issue("/c2", "near-duplicate", "C1"))
    assert found["near-duplicate"] == (2, 1, 0)
    assert found["conflicting-duplicate"] == (2, 0, 0)


def test_an_issue_reported_twice_counts_once(truth: SiteTruth) -> None:
    twice = [issue("/d1", "dead-link")] * 2
    assert scored(truth, *twice)["dead-link"] == (4, 1, 1)


def test_another_host_finds_nothing_planted(truth: SiteTruth) -> None:
    elsewhere = Issue("http://elsewhere/d1", "", "", "dead-link")
    assert scored(truth, elsewhere)["dead-link"] == (4, 1, 0)
