"""What a browser, or somebody who only says to be one, can send."""

from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.ui.page.form_html import case_of, patient_of
from skindx.ui.uploads import take_uploads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "uploads" / "hash").mkdir(parents=True)
    (tmp_path / "uploads" / "hash" / "a.jpg").write_bytes(b"photo")
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path / "uploads"


def test_an_upload_is_read_once_and_gone(folder: Path) -> None:
    file = folder / "hash" / "a.jpg"
    assert take_uploads([str(file)], folder) == (b"photo",)
    assert not file.parent.exists()
    with pytest.raises(UserError, match="did not arrive"):
        take_uploads([str(file)], folder)


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "{folder}/../secret", "{folder}", "{folder}/hash", "{folder}/link",
     "", "a\0b", 7, None, ["x"], "http://example.org/a.jpg"],
)  # fmt: skip
def test_nothing_else_is_read_or_deleted_and_the_rest_goes_all_the_same(
    folder: Path, path: object
) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    sent = path.format(folder=folder) if isinstance(path, str) else path
    with pytest.raises(UserError, match="did not arrive"):
        take_uploads([str(folder / "hash" / "a.jpg"), sent], folder)
    assert (folder.parent / "secret").read_bytes() == b"secret"
    assert not (folder / "hash" / "a.jpg").exists()
    assert Path("/etc/passwd").exists()


@pytest.mark.parametrize("sent", [None, [], "x", {}, {"photos": "x"}, {"photos": []}])
def test_no_photo_is_one_sentence(folder: Path, sent: object) -> None:
    with pytest.raises(UserError, match="the case has 0 photos"):
        case_of(sent, folder)


def test_four_photos_are_too_many_and_none_stays(folder: Path) -> None:
    paths = [folder / "hash" / f"{number}.jpg" for number in range(4)]
    for path in paths:
        path.write_bytes(b"x")
    with pytest.raises(UserError, match="the case has 4 photos"):
        case_of({"photos": [str(path) for path in paths]}, folder)
    assert not any(path.exists() for path in paths)


def test_what_was_not_reported_stays_unreported() -> None:
    reported = patient_of(
        {"age": "45", "sex": "", "site": "back", "duration": "", "skin_type": "5"}
    )
    assert (reported.age, reported.sex, reported.site, reported.duration, reported.skin_type) == (
        45, None, "back", None, 5,
    )  # fmt: skip
    assert patient_of({"site": "sole", "laterality": "left"}).place == "sole, left side"
    # A record without a side is that of an older version, to the byte.
    assert "laterality" not in patient_of({"site": "sole", "laterality": ""}).model_dump_json()
    assert patient_of(None) == patient_of({}) == patient_of("x")
    with pytest.raises(UserError, match="the field 'from_file' is not allowed"):
        patient_of({"age": "62", "from_file": ["age"]})
    assert patient_of({"age": "0"}).age == 0


@pytest.mark.parametrize(
    "sent",
    [{"age": "old"}, {"age": "200"}, {"age": "-1"}, {"sex": "x"}, {"skin_type": "9"},
     {"laterality": "up"}, {"site": ["back"]}, {"name": "Ann"}],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(sent: dict[str, object]) -> None:
    with pytest.raises(UserError):
        patient_of(sent)


def test_the_form_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    with pytest.raises(UserError) as refused:
        patient_of({"site": "${SECRET}"})
    assert "hunter2" not in str(refused.value)
