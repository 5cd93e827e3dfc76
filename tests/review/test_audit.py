import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from paint_images import save
from tiny_dataset import jpeg, skin, tiny_dataset

from skindx.cli.audit import summary_lines
from skindx.core.errors import UserError
from skindx.data.answer_log import DECISIONS
from skindx.data.decisions import Flag, read_flags, write_flags
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.review import privacy_audit as module
from skindx.review.privacy_audit import JOURNAL, PrivacySettings, Sighting, audit

ROOT = Path(__file__).parents[2]


class Fake:
    """Sees a face in every image whose mean is even."""

    looks = 0

    def __init__(self, settings: PrivacySettings) -> None:
        self.settings = settings

    def detect(self, pixels_HWC: NDArray[np.uint8]) -> list[Sighting]:
        Fake.looks += 1
        mean = int(pixels_HWC.mean() * 100)
        return [] if mean % 2 else [Sighting("face", 0.5, f"face at {mean}")]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(module, "PrivacyDetector", Fake)
    monkeypatch.setattr(Fake, "looks", 0)
    return Fake


def run(dataset: Path, **thresholds: float) -> module.AuditSummary:
    return audit(dataset, PrivacySettings(**thresholds), workers=1)


def test_each_image_is_looked_at_once(fake: type[Fake], tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 12)
    write_flags(tmp_path, [Flag("aa", "label", 0.5), Flag("gone", "face", 0.5)], ["label", "face"])
    first = run(tmp_path)
    flags = read_flags(tmp_path)
    assert (first.images, first.examined, fake.looks) == (12, 12, 12)
    assert 0 < first.flagged["face"] == first.waiting < 12
    assert Flag("aa", "label", 0.5) in flags, "flags of other reasons stay"
    assert "gone" not in {flag.sha256 for flag in flags}, "of images that left, none"
    again = run(tmp_path)
    assert (again.examined, fake.looks) == (0, 12)
    assert again.flagged == first.flagged
    assert read_flags(tmp_path) == flags
    assert "12 images, 0 of them examined now." in list(summary_lines(again))


def test_other_thresholds_look_again(fake: type[Fake], tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 4)
    run(tmp_path)
    assert run(tmp_path, face=0.9).examined == 4
    assert run(tmp_path).examined == 0, "what the first thresholds saw is not forgotten"


def test_only_what_is_new_is_looked_at(fake: type[Fake], tmp_path: Path) -> None:
    records = tiny_dataset(tmp_path, 8)
    run(tmp_path)
    sha256, path = store_bytes(tmp_path, jpeg(skin(99)), ".jpg")
    new = Record(path, sha256, "0" * 16, 120, 96, "a", "new", "train")
    write_manifest(tmp_path, [*records[2:], new])
    summary = run(tmp_path)
    assert (summary.images, summary.examined) == (7, 1)
    assert {flag.sha256 for flag in read_flags(tmp_path)} <= {r.sha256 for r in [*records, new]}


def test_a_decided_image_waits_no_more(fake: type[Fake], tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 8)
    first = run(tmp_path)
    sha256 = read_flags(tmp_path)[0].sha256
    (tmp_path / DECISIONS).write_text(f"sha256,verdict\n{sha256},keep\n")
    assert run(tmp_path).waiting == first.waiting - 1


def test_a_torn_line_is_looked_at_again(fake: type[Fake], tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 6)
    run(tmp_path)
    flags, journal = read_flags(tmp_path), tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-9])
    assert run(tmp_path).examined == 1
    assert read_flags(tmp_path) == flags
    assert len([json.loads(line) for line in journal.read_text().splitlines()]) == 6
    journal.write_text("nonsense\n")
    with pytest.raises(UserError, match=r"line 1 of .*audit.jsonl is damaged; delete"):
        run(tmp_path)


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_audit
from skindx.review import privacy_audit as module
class Slow(test_audit.Fake):
    def detect(self, pixels_HWC):
        time.sleep(0.05)
        return super().detect(pixels_HWC)
module.PrivacyDetector = Slow
test_audit.run(Path(sys.argv[1]))
"""


def test_a_killed_audit_goes_on_where_it_was(fake: type[Fake], tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "killed", 40)
    tiny_dataset(tmp_path / "whole", 40)
    folder = str(Path(__file__).parent)
    paths = [str(ROOT), str(ROOT / "tests/support"), folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "killed"), folder], env=environment
    )
    journal = tmp_path / "killed" / JOURNAL
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_text().count("\n") >= 5):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = journal.read_text().count("\n")
    assert read_flags(tmp_path / "killed") == []
    summary = run(tmp_path / "killed")
    assert 0 < summary.examined == 40 - done
    run(tmp_path / "whole")
    assert read_flags(tmp_path / "killed") == read_flags(tmp_path / "whole")


def test_an_image_that_is_gone_is_named(fake: type[Fake], tmp_path: Path) -> None:
    records = tiny_dataset(tmp_path, 4)
    (tmp_path / records[1].path).unlink()
    with pytest.raises(UserError, match=r"cannot be read .* run `skindx build` again"):
        run(tmp_path)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)])
def test_processes_see_what_one_sees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: bool
) -> None:
    """In the long run with the real models, in fresh processes."""
    if not real:
        monkeypatch.setattr(module, "PrivacyDetector", Fake)
        monkeypatch.setattr(module, "spawn_context", lambda: get_context("fork"))
    monkeypatch.setattr(module, "_FEW", 2)
    tiny_dataset(tmp_path / "a", 6)
    tiny_dataset(tmp_path / "b", 6)
    settings = PrivacySettings(intimate=0.05, face=0.05, text=0.05)
    one = audit(tmp_path / "a", settings, workers=1)
    two = audit(tmp_path / "b", settings, workers=2)
    assert one == two
    assert read_flags(tmp_path / "a") == read_flags(tmp_path / "b")


def test_an_image_that_takes_too_long_ends_an_audit_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(settings: PrivacySettings) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own, as this is a fork
        module._detector = Fake(settings)

    monkeypatch.setattr(module, "spawn_context", lambda: get_context("fork"))
    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "_LIMIT_S", 1)
    examiner = module._Examiner(PrivacySettings())
    try:
        assert examiner.detect(save(tmp_path / "sound.jpg", skin(1))) is not None
        os.mkfifo(tmp_path / "slow.png")  # whoever opens it waits for a writer
        with pytest.raises(UserError, match=r"slow.png took longer than 1 s"):
            examiner.detect(tmp_path / "slow.png")
    finally:
        examiner.process.kill()
        examiner.process.join()


@pytest.mark.parametrize(
    ("stated", "pixels_score", "expected"),
    [
        ("dermoscopic", 3.0, True),  # below the middle clinical image
        ("dermoscopic", 3.8, False),
        ("clinical", -9.0, False),
        ("", -1.7, True),
        ("mixed", -1.6, False),
    ],
)
def test_dermoscopy_is_what_the_dataset_states_unless_the_pixels_object(
    monkeypatch: pytest.MonkeyPatch, stated: str, pixels_score: float, expected: bool
) -> None:
    class Network:
        medians = {"dermoscopic": -3.3, "clinical": 3.7}  # noqa: RUF012

        def score(self, features_NF: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.array([pixels_score])

    monkeypatch.setattr(module, "shipped", Network)
    assert module.is_dermoscopic(skin(1), stated) is expected


def test_no_intimate_region_in_dermoscopic_images(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Prudish(Fake):
        def detect(self, pixels_HWC: NDArray[np.uint8]) -> list[Sighting]:
            return [Sighting("intimate", 0.9, "here"), Sighting("face", 0.9, "there")]

    monkeypatch.setattr(module, "PrivacyDetector", Prudish)
    records = tiny_dataset(tmp_path, 4)
    summary = run(tmp_path)
    assert (summary.flagged, summary.dermoscopic) == ({"face": 4, "intimate": 4}, 0)
    names = [f"images/ISIC_{number:07d}.jpg" for number in range(4)]
    renamed = [
        dataclasses.replace(record, source_url=name)
        for record, name in zip(records, names, strict=True)
    ]
    write_manifest(tmp_path, renamed)
    summary = run(tmp_path)
    assert (summary.examined, summary.flagged, summary.dermoscopic) == (0, {"face": 4}, 4)
    assert "4 dermoscopic images resemble" in "\n".join(summary_lines(summary))
