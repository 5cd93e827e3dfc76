"""Examples beside a bundle: read under limits, named in each answer, counted and kept nowhere."""

import asyncio
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Skindx
from echo_app import ask
from fastapi import FastAPI
from painted_answers import Painter, jpeg, rich
from some_examples import CLASSES, CREDIT, write_examples

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.record import CaseAnswer
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.use_limits import NO_EXAMPLES, Examples, read_examples
from skindx.taxonomy import load_taxonomy
from skindx.texts.catalogue import text
from skindx.ui.diagnosis_pool import _marking
from skindx.ui.http.server_metrics import CountingDiagnoser, Metrics
from skindx.ui.page.answer_html import example_of, result_html
from skindx.ui.page.form_html import intake_html
from skindx.ui.uploads import example_routes
from skindx.workers.worker_pool import PoolStatus

OWN = jpeg(640, 480, seed=3)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    bundle = tmp_path_factory.mktemp("offered") / "bundle"
    write_examples(bundle)
    return read_examples(bundle)


def photo_of(examples: Examples, number: int) -> bytes:
    return list(examples.photos.values())[number - 1].data


def test_examples_are_known_by_their_bytes(examples: Examples, tmp_path: Path) -> None:
    found = examples.find([OWN, photo_of(examples, 2)])
    assert found is not None
    assert (found.truth, found.credit) == (CLASSES[1].name, CREDIT)
    assert examples.find([OWN]) is None
    assert read_examples(tmp_path / "bundle") is NO_EXAMPLES
    (tmp_path / "examples").mkdir()  # of a run, say, and not ours
    assert read_examples(tmp_path / "bundle") is NO_EXAMPLES


def _link_folder(folder: Path) -> None:
    shutil.move(folder, folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _link_photo(folder: Path) -> None:
    shutil.move(folder / "2.jpg", folder.with_name("secret.jpg"))
    (folder / "2.jpg").symlink_to("../secret.jpg")


def _rewrite(**change: Any) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        rows = yaml.safe_load((folder / "examples.yaml").read_text())
        rows[1] |= change
        (folder / "examples.yaml").write_text(yaml.safe_dump(rows))

    return rewrite


def _no_image(folder: Path) -> None:
    import hashlib

    (folder / "2.jpg").write_bytes(b"GIF89a no image")
    _rewrite(sha256=hashlib.sha256(b"GIF89a no image").hexdigest())(folder)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a linked folder": (_link_folder, "examples is a link"),
    "a linked photo": (_link_photo, "give a plain file"),
    "a linked list": (
        lambda folder: (
            shutil.move(folder / "examples.yaml", folder / "x"),
            (folder / "examples.yaml").symlink_to("x"),
        ),
        "give a plain file",
    ),
    "other bytes": (lambda folder: (folder / "2.jpg").write_bytes(OWN), "has the SHA-256"),
    "too large": (
        lambda folder: (folder / "2.jpg").write_bytes(bytes((2 << 20) + 1)),
        "at most 2097152 are read",
    ),
    "no image": (_no_image, "is not an image that can be shown"),
    "a photo outside": (_rewrite(file="../bundle.json"), "example 2"),
    "no photo": (_rewrite(file="3.jpg"), "does not exist"),
    "a folder": (lambda folder: (folder / "d").mkdir() or _rewrite(file="d")(folder), "plain file"),
    "a key too many": (_rewrite(script="x"), "example 2"),
    "signs of a terminal": (_rewrite(credit="\x1b[31mred"), "example 2"),
    "no list": (lambda folder: (folder / "examples.yaml").write_text("a: 1"), "must be a list"),
    "names": (lambda folder: (folder / "examples.yaml").write_text("[1.jpg]"), "example 1"),
    "a bomb": (
        lambda folder: (folder / "examples.yaml").write_text("- &a [1]\n- [*a, *a]\n"),
        "alias",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    spoil, said = HOSTILE[kind]
    spoil(write_examples(tmp_path / "bundle"))
    with pytest.raises(UserError, match=said) as error:
        read_examples(tmp_path / "bundle")
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


def test_a_server_does_not_start_with_it(tiny_bundle: Path, tmp_path: Path, skindx: Skindx) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (write_examples(bundle) / "1.jpg").write_bytes(OWN)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    code, out, err = skindx("serve", str(bundle), "--port", str(port))
    assert (code, out) == (2, "")
    assert "1.jpg has the SHA-256" in err
    assert len(err.splitlines()) == 1


def test_the_worker_names_examples_and_no_monitor_sees_them(examples: Examples) -> None:
    seen: list[list[bytes]] = []

    def answer_many(
        cases: list[Case], observe: Callable[[list[Case]], None] | None
    ) -> list[CaseAnswer | UserError]:
        if observe:
            observe(cases)
        return [UserError("no") if case.photos == (b"bad",) else rich(case) for case in cases]

    photo = photo_of(examples, 1)
    cases = [Case((OWN,)), Case((photo,)), Case((b"bad",)), Case((jpeg(640, 480, 5), photo))]
    note = lambda some: seen.append([case.photos[0] for case in some])  # noqa: E731
    answers = _marking(answer_many, note, tuple(examples.photos))(cases)
    assert seen == [[OWN, b"bad"]]
    marked = [
        isinstance(one, CaseAnswer) and text("remark_example") in one.diagnosis.photos[0].remarks
        for one in answers
    ]
    assert marked == [False, True, False, True]
    assert isinstance(answers[2], UserError)
    seen.clear()
    _marking(answer_many, note, ())(cases)
    assert [len(one) for one in seen] == [4]


def test_a_server_counts_no_example(examples: Examples, tiny_bundle: Path) -> None:
    metrics = Metrics(open_bundle(tiny_bundle), "0" * 64, lambda: PoolStatus(1, 1, 0, 1, 0, ""))
    counting = CountingDiagnoser(Painter(), metrics, "page", examples)
    before = metrics.text()
    asyncio.run(counting.diagnose(Case((photo_of(examples, 1),))))
    assert metrics.text() == before
    asyncio.run(counting.diagnose(Case((OWN,))))
    assert metrics.text() != before


def test_the_page_gets_an_example_by_its_number(examples: Examples) -> None:
    app = FastAPI()
    app.include_router(example_routes(examples))
    assert ask(app, "GET", "/examples/2").content == photo_of(examples, 2)
    assert ask(app, "GET", "/examples/3").status_code == 404
    assert ask(app, "GET", "/examples/0").status_code == 404
    assert ask(app, "GET", "/examples/1.jpg").status_code == 422
    form = intake_html(64, examples=examples)
    assert form.count("data-example=") == 2
    assert CLASSES[1].name not in form.partition("Try an example")[2].partition("</div>")[0]
    assert "Try an example" not in intake_html(64)


def test_the_page_says_after_the_answer_what_an_example_is(examples: Examples) -> None:
    taxonomy = load_taxonomy("isic9")
    answer = asyncio.run(Painter().diagnose(Case((OWN,))))
    right, wrong = (one.example for one in examples.photos.values())

    def verdict(example: Any, diagnosis: Any = answer.diagnosis) -> str:
        return example_of(example, diagnosis, taxonomy).verdict

    assert verdict(right) == "The model puts this condition first."
    assert verdict(wrong) == (
        f"The model is wrong and puts {CLASSES[0].name} first. It names the true condition too."
    )
    assert "does not know" in verdict(wrong.model_copy(update={"truth": "Kerion"}))
    unsure = answer.diagnosis.model_copy(update={"abstained": "Too unsure."})
    assert verdict(right, unsure) == "The model names no condition for it."
    hostile = wrong.model_copy(update={"credit": "<script>alert(1)</script>"})
    html = result_html(answer, None, example_of(hostile, answer.diagnosis, taxonomy))
    assert "<script>" not in html
    assert html.index("nothing of this answer is kept") < html.index("sx-advice")
    assert html.index("What it may be") < html.index("confirmed by histopathology")
    assert "sx-truth" not in (own := result_html(answer, None))
    assert "sx-example" not in own
