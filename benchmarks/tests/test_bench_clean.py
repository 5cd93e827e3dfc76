"""The bench of copies: what it plants, how it scores by hand, and how it bears bad peers."""

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import JobError, UserError
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx_bench.data import clean, clean_peers
from skindx_bench.data.clean import plain_values
from skindx_bench.data.clean_answers import (
    Answer,
    AnswerRanking,
    NoAnswerError,
    Scored,
    ask,
    read_answer,
)
from skindx_bench.data.clean_plants import (
    STRANGERS,
    Base,
    Planted,
    folder_base,
    painted_base,
    plant,
)
from skindx_bench.data.copy_variants import OVERLAYS
from skindx_bench.harness.environments import CLEAN_PEERS, make_environments
from skindx_bench.subjects import run_bench


def ranking(scores, hits, units, hits_of_units) -> AnswerRanking:
    return AnswerRanking(
        np.array(scores, float),
        np.array(hits, bool),
        np.array(units, int).reshape(-1, 2),
        np.array(hits_of_units, int),
    )


def test_measures_of_a_ranking_by_hand() -> None:
    # Units 0 and 1 have a hit each, unit 2 none; the list: hit, false, hit.
    list_ = ranking([3, 2, 1], [True, False, True], [(0, 0), (1, 2), (1, 1)], [1, 1, 0])
    assert list_.average_precision().value == pytest.approx((1 + 2 / 3) / 2)
    assert list_.among_first(2) == (0.5, 0.5)
    assert list_.before_false().tolist() == [True, False, False]
    # Of 5 candidates 3 are no hits: the first hit is before all of them, the second before two.
    assert list_.auroc(5) == pytest.approx((3 + 2) / 6)


def test_equal_scores_stand_together() -> None:
    list_ = ranking([1, 1], [True, False], [(0, 0), (0, 1)], [1, 0])
    assert list_.average_precision().value == pytest.approx(0.5)
    assert list_.auroc(2) == pytest.approx(0.5)
    assert not list_.before_false().any()


def test_a_hit_that_is_not_listed_is_never_found() -> None:
    list_ = ranking([1], [True], [(0, 0)], [2])
    assert list_.average_precision().value == pytest.approx(0.5)
    # The other hit ties with all others at the end.
    assert list_.auroc(4) == pytest.approx(0.75)
    empty = ranking([], [], [], [1])
    assert empty.average_precision().value == 0


def test_a_draw_weights_a_false_pair_by_both_of_its_units() -> None:
    list_ = ranking([2, 1], [False, True], [(0, 1), (0, 0)], [1, 0])
    weigh = list_.average_precision().weigh
    values = weigh(np.array([[1.0, 1.0], [1.0, 0.0], [2.0, 3.0], [0.0, 1.0]]))
    np.testing.assert_allclose(values[:3], [1 / 2, 1.0, 2 / 8])
    assert np.isnan(values[3])


def small(tmp_path: Path) -> Planted:
    """Return two originals (roots 0, 1) with a copy each, two overlaid images, one off-topic."""
    rows = [
        ("images/a.jpg", 0, "base", "", "x", "a"),
        ("images/b.jpg", 0, "copy", "crop_5", "x", "b"),
        ("images/c.jpg", 1, "base", "", "x", "c"),
        ("images/d.jpg", 1, "copy", "crop_5", "x", "d"),
        ("images/e.jpg", 2, "overlay", "caption", "x", "e"),
        ("images/f.jpg", 3, "overlay", "caption", "x", "f"),
        ("images/g.jpg", 4, "off_topic", "drawing", "", "g"),
    ]
    return Planted.of(tmp_path, rows)


def answered(planted: Planted, pairs, off_topic=()) -> Answer:
    written = {"pairs": pairs, "off_topic": off_topic, "memory_mb": 1, "version": "1"}
    return read_answer(written, planted.names, 100)


def test_scores_by_hand(tmp_path: Path) -> None:
    planted = small(tmp_path)
    pairs = [
        ("b.jpg", "a.jpg", 0.9, True),
        ("a.jpg", "b.jpg", 0.7, False),  # again: counts once, by its greatest score
        ("e.jpg", "f.jpg", 0.8, True),
        ("c.jpg", "d.jpg", 0.5, False),
    ]
    one = Scored(planted, answered(planted, pairs, [("g.jpg", 1.0), ("a.jpg", 0.5)]), seed=0)
    assert one.answer.pairs_P2.tolist() == [[0, 1], [4, 5], [2, 3]]
    assert one.pairs.average_precision().value == pytest.approx((1 + 2 / 3) / 2)
    recall, copies = one.recall("crop_5")
    assert (recall.value, copies) == (0.5, 2)
    share, links = one.false_links()
    assert (share.value, links) == (0.5, 2)
    assert one.false_between() == {"caption and caption": 1}
    misled, under = one.misled()
    assert (misled.value, under) == (1.0, 2)
    assert one.recall_at_no_false().value == 0.5
    assert one.off_topic.average_precision().value == 1.0


def test_a_method_that_links_every_family_tears_none(tmp_path: Path) -> None:
    rows = [
        (f"images/{root:02d}{at}.jpg", root, part, kind, "x", "x")
        for root in range(40)
        for at, (part, kind) in enumerate((("base", ""), ("copy", "blur")))
    ]
    planted = Planted.of(tmp_path, rows)
    pairs = [(f"{root:02d}0.jpg", f"{root:02d}1.jpg", 1.0, True) for root in range(40)]
    found = Scored(planted, answered(planted, pairs), seed=0)
    assert found.torn("blur")[0].value == 0
    assert found.false_links()[0].value == 0
    assert found.largest_group() == 2
    assert found.false_links()[0].high < 0.1
    missed = Scored(planted, answered(planted, []), seed=0)
    assert 0.3 < missed.torn("blur")[0].value < 0.8
    assert missed.pairs.average_precision().value == 0


def test_what_is_planted(tmp_path: Path) -> None:
    base = painted_base(24, seed=1)
    amounts = {"originals": 3, "overlaid": 2, "off_topic": 1, "seed": 1}
    planted = plant(tmp_path / "new", base, ("crop_5", "blur"), **amounts)
    assert len(planted.where("base")) == 24 - 2 * len(OVERLAYS)
    assert len(planted.where("copy", "blur")) == 3
    assert len(planted.where("overlay")) == 2 * len(OVERLAYS)
    assert len(planted.where("off_topic")) == len(STRANGERS)
    roots = {part: set(planted.roots_N[planted.where(part)]) for part in set(planted.parts)}
    assert roots["copy"] <= roots["base"]
    assert not roots["overlay"] & roots["base"]
    assert not roots["off_topic"] & (roots["base"] | roots["overlay"])
    files = sorted(path.name for path in (tmp_path / "new/images").iterdir())
    assert [Path(name).name for name in planted.names] == files
    again = plant(tmp_path / "again", base, ("crop_5", "blur"), **amounts)
    assert again.names == planted.names
    np.testing.assert_array_equal(again.roots_N, planted.roots_N)
    others = plant(tmp_path / "others", base, ("blur",), overlays=("stamp", "phone"), **amounts)
    assert {others.kinds[at] for at in others.where("overlay")} == {"stamp", "phone"}
    assert len(others.where("base")) == 24 - 4
    with pytest.raises(UserError, match="24 different images are too few"):
        plant(tmp_path / "few", base, ("blur",), **{**amounts, "originals": 30})


def test_of_a_folder_one_image_of_each_thing_is_taken(tmp_path: Path) -> None:
    for index in range(4):
        pixels = paint(CLASSES[index], index).pixels
        (tmp_path / CLASSES[index]).mkdir()
        (tmp_path / CLASSES[index] / f"p{index}_one.jpg").write_bytes(encode_jpeg(pixels))
    mirrored = np.ascontiguousarray(paint(CLASSES[0], 0).pixels[:, ::-1])
    (tmp_path / "mirrored.jpg").write_bytes(encode_jpeg(mirrored, 80))
    (tmp_path / "p1_two.jpg").write_bytes(encode_jpeg(paint(CLASSES[7], 9).pixels))
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    (tmp_path / "notes.txt").write_text("no image")
    taken, left_out = folder_base(tmp_path, r"^(p\d)_", (), 0, seed=0)
    assert (len(taken), left_out) == (4, 2)
    assert len({image.label for image in taken}) >= 3
    assert len(folder_base(tmp_path, "", (), 3, seed=0)[0]) == 3
    for wrong, words in ((tmp_path / "absent", "is no folder"), (tmp_path / "empty", "holds no")):
        if words == "holds no":
            wrong.mkdir()
        with pytest.raises(UserError, match=words):
            folder_base(wrong, "", (), 0, seed=0)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_an_answer_is_read_and_its_list_is_cut() -> None:
    written = {
        "pairs": [["b", "a", 1.0, False], ["a", "c", 2.0, False], ["b", "c", 0.5, True]],
        "memory_mb": 2.5,
        "version": "3",
    }
    code = f"import sys; open(sys.argv[1], 'w').write({json.dumps(json.dumps(written))})"
    answer = ask(python(code), ["x/a", "x/b", "x/c"], threads=1, timeout_s=60, listed=1)
    # What it accepts counts wherever it stands.
    assert answer.pairs_P2.tolist() == [[0, 2], [1, 2]]
    assert answer.accepted_P.tolist() == [False, True]
    assert answer.memory_mb == 2.5
    assert answer.wall_s > 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise OSError('no weights here')", "no weights here"),
        ("pass", "cannot be read"),
        ("import sys; open(sys.argv[1], 'w').write('{')", "cannot be read"),
        (
            "import sys; open(sys.argv[1], 'w').write("
            '\'{"pairs": [["a", "z", 1, true]], "memory_mb": 1, "version": ""}\')',
            "cannot be read",
        ),
    ],
)
def test_a_method_that_fails_says_why(code: str, words: str) -> None:
    with pytest.raises(NoAnswerError, match=words):
        ask(python(code), ["a"], threads=1, timeout_s=60, listed=10)


def test_a_slow_method_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid));"
        "time.sleep(300)"
    )
    with pytest.raises(NoAnswerError, match="stopped after 2 s"):
        ask(python(code), ["a"], threads=1, timeout_s=2, listed=10)
    assert ended(int((tmp_path / "child").read_text()))


def ended(child: int) -> bool:
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    return False


@pytest.mark.lab
def test_a_stopped_bench_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    environment = tmp_path / "peers" / "fastdup" / "bin"
    environment.mkdir(parents=True)
    script = f"#!/bin/sh\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/child\nsleep 300"
    (environment / "python").write_text(script)
    (environment / "python").chmod(stat.S_IRWXU)
    (tmp_path / "work").mkdir()
    sets = ["methods=[fastdup]", f"peers={tmp_path / 'peers'}"]
    command = [sys.executable, "-m", "skindx_bench", "clean", "--smallest"]
    command += [part for value in sets for part in ("--set", value)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path / "work")}) as bench:
        while not (tmp_path / "child").exists():
            assert bench.poll() is None
            time.sleep(0.05)
        bench.terminate()
        assert bench.wait() == 128 + signal.SIGTERM
    assert ended(int((tmp_path / "child").read_text()))
    assert not list((tmp_path / "work").glob("skindx-clean-*"))


@pytest.mark.lab
def test_the_smallest_run_has_the_keys(tmp_path: Path) -> None:
    run_bench("clean", tmp_path / "clean.json", [f"out={tmp_path / 'out'}"], smallest=True)
    written = json.loads((tmp_path / "clean.json").read_text())
    figures = written["figures"]
    for kind in ("crop_10", "border_white"):
        assert figures[f"copies_recall_{kind}"]["n"] == 2
        assert figures[f"families_across_splits_{kind}"]["unit"] == "families"
    assert {"false_links", "copies_ap_phash", "seconds_phash", "memory_phash"} <= figures.keys()
    assert set(written["models"]["phash"]["recall"]) == {"crop_10", "border_white"}
    assert (tmp_path / "out/planted/truth.csv").is_file()
    assert (tmp_path / "out/links-phash.csv").is_file()
    assert "border_white" in (tmp_path / "out/recall.md").read_text()
    with pytest.raises(UserError, match="exists already"):
        run_bench("clean", None, [f"out={tmp_path / 'out'}"], smallest=True)


def test_peers_that_are_absent_or_bad_are_named(tmp_path: Path) -> None:
    environment = tmp_path / "cleanvision" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text("#!/bin/sh\necho 'it broke' >&2\nexit 3\n")
    (environment / "python").chmod(stat.S_IRWXU)
    sets = ["methods=[phash, cleanvision, imagededup_phash]", f"peers={tmp_path}"]
    result = clean.run(clean.Config.load(None, [*clean.SMALLEST, *sets]))
    assert "cleanvision: it broke." in result.notes
    assert "imagededup_phash: not installed." in result.notes
    assert result.models["cleanvision"] == {"absent": "it broke"}
    with pytest.raises(JobError, match=r"no method .* cleanvision: it broke"):
        clean.run(clean.Config.load(None, [*clean.SMALLEST, sets[1], "methods=[cleanvision]"]))


def test_a_perfect_peer_is_the_best(tmp_path: Path) -> None:
    environment = tmp_path / "fastdup" / "bin"
    environment.mkdir(parents=True)
    script = f"""#!{sys.executable}
import csv, json, pathlib, sys
folder, file = sys.argv[-2:]
rows = list(csv.DictReader(open(pathlib.Path(folder) / "truth.csv")))
name = lambda row: pathlib.Path(row["name"]).name
pairs = [
    (name(one), name(other), 1.0, True)
    for one in rows for other in rows
    if one["name"] < other["name"] and one["root"] == other["root"]
]
strange = [(name(row), float(row["part"] == "off_topic")) for row in rows]
json.dump(
    {{"pairs": pairs, "off_topic": strange, "memory_mb": 1, "version": "9"}}, open(file, "w")
)
"""
    (environment / "python").write_text(script)
    (environment / "python").chmod(stat.S_IRWXU)
    sets = ["methods=[phash, fastdup]", f"peers={tmp_path}"]
    figures = clean.run(clean.Config.load(None, [*clean.SMALLEST, *sets])).figures
    assert figures["copies_ap_fastdup"].value == 1
    assert figures["off_topic_ap_fastdup"].value == 1
    assert figures["copies_over_best_peer"].value == figures["copies_ap_phash"].value
    assert figures["copies_ap_fastdup"].spread[0] < 1  # few copies: the interval says so


def test_a_method_that_finds_nothing_has_plain_values(tmp_path: Path) -> None:
    one = Scored(small(tmp_path), answered(small(tmp_path), []), seed=0)
    values = plain_values(one, ["crop_5"], draws=50)
    assert values["copies"]["precision_at_100"] is None
    assert values["copies"]["average_precision"][0] == 0
    assert values["recall"]["crop_5"][0] == 0
    json.dumps(values, allow_nan=False)


def test_user_errors() -> None:
    with pytest.raises(UserError, match="no copy is called 'cropp'"):
        clean.Config.load(None, ["kinds=[cropp]"])
    with pytest.raises(UserError, match="no overlay is called 'stampp'"):
        clean.Config.load(None, ["overlays=[stampp]"])
    with pytest.raises(UserError, match="no method is called 'magic'"):
        clean.run(clean.Config.load(None, [*clean.SMALLEST, "methods=[magic]"]))
    with pytest.raises(UserError, match="no peer 'magic'"):
        make_environments(Path("nowhere"), ["magic"])


def test_the_script_of_the_peers_needs_nothing_but_python() -> None:
    tree = ast.parse(Path(clean_peers.__file__).read_text())
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    assert names <= sys.stdlib_module_names
    assert {clean_peers.PEERS[name][1] for name in clean_peers.PEERS} == set(CLEAN_PEERS)


def test_base_of_painted_images_is_seeded() -> None:
    assert painted_base(3, 1) == painted_base(3, 1) != painted_base(3, 2)
    assert all(isinstance(image, Base) for image in painted_base(2, 0))
