import pytest

from skindx.data.progress import progress_bars


def test_bars_are_drawn_when_there_is_something_to_draw(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bars():
        pass
    assert capfd.readouterr().out == ""
    with progress_bars() as progress:
        progress("screen", 1, 2)
        progress("screen", 2, 2)
    assert "2/2" in capfd.readouterr().out
