import io
from pathlib import Path

import pytest
from paint_images import paint, save
from rich.console import Console

from skindx.core.progress import plain_lines, progress_bars
from skindx.data.build.build_dataset import build, load_build_settings


def test_without_a_terminal_there_are_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bars():
        pass
    assert capfd.readouterr() == ("", "")
    with progress_bars() as progress:
        for done in range(3):
            progress("screen", done, 2)
        progress("screen", 2, 2)
    assert capfd.readouterr() == ("screen: 0 of 2\nscreen: 2 of 2\n", "")


def test_bars_are_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=80)
    monkeypatch.setattr("rich.console.Console", lambda: terminal)
    with progress_bars() as progress:
        progress("screen", 1, 2)
        progress("screen", 2, 2)
    assert "2/2" in drawn.getvalue()


def test_a_long_stage_writes_a_line_at_intervals() -> None:
    lines: list[str] = []
    now = 0.0
    report = plain_lines(lines.append, interval_s=10, clock=lambda: now)
    for done in range(1000, 1101):
        now += 0.25
        report("look", done, 1100)
        report("acquire", done, 0)
    assert lines == [
        "look: 1,000 of 1,100",
        "acquire: 1,000 so far",
        "look: 1,040 of 1,100, about 15 s left",
        "acquire: 1,040 so far",
        "look: 1,080 of 1,100, about 5 s left",
        "acquire: 1,080 so far",
        "look: 1,100 of 1,100",
    ]


def test_long_rests_are_written_in_minutes_and_hours() -> None:
    lines: list[str] = []
    times = iter((0.0, 60.0, 125.0, 11_000.0))
    report = plain_lines(lines.append, interval_s=10, clock=lambda: next(times))
    for done in (0, 100, 101, 110):
        report("look", done, 400)
    assert lines[1:] == [
        "look: 100 of 400, about 3 min left",
        "look: 101 of 400, about 6 min left",
        "look: 110 of 400, about 8 h 3 min left",
    ]


def test_every_stage_of_a_build_reports(tmp_path: Path) -> None:
    for number in range(6):
        for shift, label in enumerate(("acne", "wart")):
            save(tmp_path / "in" / label / f"{number}.jpg", paint(100 * shift + number))
    seen: dict[str, tuple[int, int]] = {}

    def note(stage: str, done: int, total: int) -> None:
        seen[stage] = (done, total)

    build(load_build_settings(tmp_path / "in", ["workers=1"]), tmp_path / "out", progress=note)
    stages = ["acquire", "screen", "compare", "describe", "candidates"]
    stages += ["verify", "split", "write"]
    assert list(seen) == stages
    assert seen.pop("acquire") == (12, 0)
    verified, pairs = seen.pop("verify")
    assert verified == pairs > 0
    assert set(seen.values()) == {(12, 12)}
