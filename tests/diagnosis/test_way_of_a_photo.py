"""A reader who follows one photo from its bytes to the sentences of its answer meets few files.

Counted are the files of the wheel whose functions run, with the bundle loaded and warm: what is
made once a bundle is no part of a photo's way, and neither are imports. The files of
`skindx/diagnosis` are rooms, numbered as the way first enters them. A room is left when none of its
functions runs any more. A *return* is an entry into a room that was left, if a later room was
entered since: the reader turns back. Calls between a room and the next one are none, and neither is
the file that calls the stages one after another, since it is left once, at the end.

`python tests/diagnosis/test_way_of_a_photo.py BUNDLE PHOTO` prints both ways.
"""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console
from skin_photo import skin_photo

import skindx
from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer, answer_many
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.report.answer_report import print_diagnosis
from skindx.ui.page.answer_html import result_html

WHEEL = Path(skindx.__file__).parent
RELEASED = WHEEL.parent / "models/ham10000/skindx_ham10000/bundle"
ROOMS = "diagnosis/"
MOST = {"page": (21, 20), "terminal": (18, 17)}
"""Files of the way itself (the diagnosis, its texts, the page), and of the libraries that it uses
(imaging, models, taxonomy, settings); what stands. A photo of the released model, with its checks
of distribution and modality, meets five more libraries."""
MOST_RETURNS = 4
LIBRARIES = ("core/", "data/", "imaging/", "models/", "taxonomy/", "workers/", "metrics/")


@dataclass
class Way:
    """The files of the wheel that some calls enter, in their order."""

    files: list[str] = field(default_factory=list)
    returns: list[str] = field(default_factory=list)
    """Rooms that were entered again, each time."""
    _running: dict[str, int] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    """Room that was left -> the latest room that was entered since."""

    def follow(self, calls: Callable[[], object]) -> "Way":
        """Follow some calls of this thread."""
        sys.setprofile(self._event)
        try:
            calls()
        finally:
            sys.setprofile(None)
        return self

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(f"{WHEEL}/"):
            return
        file = path.removeprefix(f"{WHEEL}/")
        if event == "call":
            self._enter(file)
        elif self._running.get(file):  # else it was entered before the way began
            self._running[file] -= 1
            if not self._running[file]:
                self._latest[file] = -1

    def _enter(self, file: str) -> None:
        if file not in self.files:
            self.files.append(file)
        if not self._running.get(file) and file.startswith(ROOMS):
            room = self.files.index(file)
            if self._latest.get(file, -1) > room:
                self.returns.append(file)
            left = [other for other in self._latest if not self._running[other]]
            self._latest |= {other: max(self._latest[other], room) for other in left}
        self._running[file] = self._running.get(file, 0) + 1

    @property
    def libraries(self) -> list[str]:
        """Those files that the way uses and that know nothing of a diagnosis."""
        return [file for file in self.files if file.startswith(LIBRARIES)]


def ways(predictor: Predictor, photo: bytes) -> dict[str, Way]:
    """Return the way to the page, as a server's worker and the page go it, and to the terminal."""

    def page() -> None:
        (answered,) = answer_many(predictor, [Case((photo,))])
        assert not isinstance(answered, UserError), answered
        result_html(answered, predictor.metrics)

    def terminal() -> None:
        diagnosis = answer(predictor, Case((photo,))).diagnosis
        print_diagnosis(diagnosis, Console(file=io.StringIO(), width=200), details=True)

    followed = {}
    for name, calls in (("page", page), ("terminal", terminal)):
        calls()  # warm
        followed[name] = Way().follow(calls)
    return followed


@pytest.mark.parametrize("name", ["page", "terminal"])
def test_a_photo_enters_few_files_and_turns_back_rarely(tiny_bundle: Path, name: str) -> None:
    way = ways(Predictor.load(tiny_bundle), skin_photo())[name]
    mine = [file for file in way.files if file not in way.libraries]
    most_files, most_libraries = MOST[name]
    assert len(mine) <= most_files, mine
    assert len(way.libraries) <= most_libraries, way.libraries
    assert len(way.returns) <= MOST_RETURNS, way.returns


@pytest.mark.skipif(not RELEASED.exists(), reason="the released model is not in this checkout")
def test_a_photo_of_the_released_model_goes_no_longer_way() -> None:
    predictor = Predictor.load(RELEASED)
    # Which figures an answer has decides how far it goes: the twelve have every next step.
    for photo in sorted(RELEASED.with_name("examples").glob("*.jpg")):
        for name, way in ways(predictor, photo.read_bytes()).items():
            mine = [file for file in way.files if file not in way.libraries]
            assert len(mine) <= MOST[name][0], (photo.name, mine)
            assert len(way.libraries) <= MOST[name][1] + 5, (photo.name, way.libraries)
            assert len(way.returns) <= MOST_RETURNS, (photo.name, way.returns)


def room(path: str) -> Callable[..., None]:
    """Return a function of a file, which calls what it is given."""
    names: dict[str, Any] = {}
    exec(compile("def room(*then):\n    [one() for one in then]", path, "exec"), names)
    function: Callable[..., None] = names["room"]
    return function


def test_a_room_that_is_entered_again_after_a_later_one_is_a_return() -> None:
    way, first, second = Way(), f"{WHEEL}/diagnosis/a.py", f"{WHEEL}/diagnosis/b.py"
    enter_a, enter_b = room(first), room(second)

    def calls() -> None:
        enter_a(enter_b, enter_b)  # helped by the next room, twice
        enter_b()
        enter_a()  # back

    way.follow(calls)
    assert way.files == ["diagnosis/a.py", "diagnosis/b.py"]
    assert way.returns == ["diagnosis/a.py"]


if __name__ == "__main__":
    bundle, photo = map(Path, sys.argv[1:])
    for title, one in ways(Predictor.load(bundle), photo.read_bytes()).items():
        mine = [file for file in one.files if file not in one.libraries]
        print(f"{title}: {len(mine)} files, {len(one.libraries)} of libraries; ", end="")
        print(f"{len(one.returns)} returns ({', '.join(one.returns)}).")
        print("  ", "\n   ".join(one.files))
