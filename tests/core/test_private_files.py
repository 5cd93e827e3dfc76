"""What holds somebody's photos or answers is its owner's alone, whatever the umask and the door."""

import ast
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kept_cases import answer
from PIL import Image
from scan_folders import small_visit, visits_of
from skin_photo import skin_photo

from skindx.api import answer_file
from skindx.casebook.casebook import Casebook
from skindx.casebook.casebook_export import export
from skindx.cli.scan import AskAboutRulers
from skindx.clinic.report_files import ReportFiles
from skindx.clinic.source_photos import Named
from skindx.core.atomic_files import FolderKind
from skindx.core.private_files import (
    make_private,
    new_private,
    private_output,
    renew_private,
    write_private,
)
from skindx.diagnosis.photo_list import columns_of, write_submission
from skindx.imaging.dicom_facts import read_key
from skindx.monitor.drift_detector import URGENT
from skindx.monitor.monitor_file import MonitorFile
from skindx.scan.compare.scan_comparison import compare, write_comparison
from skindx.scan.outputs import scan_files
from skindx.scan.patches import save_patch
from skindx.scan.photo_store import photo_store
from skindx.scan.work.scan_worker import WorkFolder
from skindx.taxonomy import load_taxonomy
from skindx.ui import uploads
from skindx.ui.http.users import add_user
from skindx.ui.scans import scan_jobs
from skindx.ui.scans.scan_job import ScanOrder
from skindx.workers.lease_queue import open_database

PACKAGES = ("api", "casebook", "clinic", "diagnosis", "monitor", "scan", "ui")
"""Their files are of persons."""
WRITERS = {
    "atomic_file", "atomic_folder", "chmod", "makedirs", "mkdir", "mkstemp", "renew_file",
    "savefig", "temporary_folder", "touch", "write_bytes", "write_csv", "write_json", "write_text",
}  # fmt: skip
INSIDE = {
    ("api/answer_file.py", "open"),
    ("diagnosis/photo_checks.py", "open"),
    ("diagnosis/answer_figure.py", "savefig"),  # into memory
}
"""Of a temporary path that `private_file` gave, and of memory that a process shares."""


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return what lies below a folder and is not private, with its mode."""
    private = {True: 0o700, False: 0o600}
    return {
        path.relative_to(folder).as_posix(): oct(path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.stat().st_mode & 0o777 != private[path.is_dir()]
    }


def _table(name: str, out: Path) -> None:
    answer_file.write_table(out / name, pa.schema([("file", pa.string())]), [{"file": "a.jpg"}])


def _part(out: Path) -> None:
    with answer_file.open_part(out / "answers.csv.part", {"bundle": "b"}):
        pass


def _submission(out: Path) -> None:
    columns = columns_of("isic2018", load_taxonomy("ham10000").keys, [])
    write_submission(out / "isic.csv", "isic2018", [], columns)


def _reports(out: Path) -> None:
    files = ReportFiles(fhir=out / "a.json", dicom_sr=out / "a.dcm", named=Named("P"))
    files.check([skin_photo()])
    files.write(answer(1).diagnosis, [skin_photo()], None)


def _book(out: Path) -> None:
    book = Casebook.open(out / "cases.db")
    case = book.keep("ann", answer(1), patient="P", lesion="arm", consent=True, train=True)
    book.confirm("ann", case, "Nevus", "", ("Nevus",), version=1, confirmed_by="histopathology")
    export(book.all_cases(), out / "export", book.export_key())
    write_private(out / "book.json", "{}")
    book.delete("ann", case)


def _queue(out: Path) -> None:
    engine = open_database(out / "tasks.db")
    with engine.begin() as link:
        link.exec_driver_sql("CREATE TABLE t (x)")
        assert (out / "tasks.db-journal").exists()
        assert not modes(out)
    engine.dispose()


def _monitor(out: Path) -> None:
    bundle = SimpleNamespace(spec=SimpleNamespace(name="b"), taxonomy=SimpleNamespace(keys=("n",)))
    numbers: Any = SimpleNamespace(bundle=bundle, streams=(URGENT,), reference=lambda: (None, ""))
    make_private(out)
    MonitorFile.create(out / "monitor.db", numbers, "a" * 64)


def _uploads(out: Path) -> None:
    make_private(out)  # as the server has
    uploads._write([out / "a" / "photo", out / "b" / "photo"], [b"one", b"two"])


def _scan_jobs(out: Path) -> None:
    order = ScanOrder(
        bundle="b", digest="d", photos=1, mm_per_pixel=(), miss_rate=None, workers=1,
        most_megapixels=1,
    )  # fmt: skip
    make_private(out)
    scan_jobs._write_photos(out / "scan", order, [b"photo"])


def _ruler(out: Path) -> None:
    ruler: Any = SimpleNamespace(sentence="A ruler.")
    ask = AskAboutRulers(out / "scan", confirmed=False)
    with pytest.raises(Exception, match="not confirmed"):
        ask(ruler, np.zeros((4, 4, 3), np.uint8))


def _work(out: Path) -> None:
    work = WorkFolder(out / "_scan")
    work.write_boxes([])
    save_patch(work.patch(0, 1), np.zeros((2, 2), np.float32))
    photo = out / "photo.jpg"
    file = io.BytesIO()
    Image.new("RGB", (256, 256)).save(file, "JPEG")
    write_private(photo, file.getvalue())
    photo_store(photo, work.store_folder(0))


def _comparison(visits: tuple[Path, Path], out: Path) -> None:
    write_comparison(out / "compared", compare(*visits))


def _renewed(out: Path) -> None:
    make_private(out)
    (out / "lesions.csv").write_text("as 1.0.0 left it")
    renew_private(out / "lesions.csv", b"now")


def _library(out: Path) -> None:
    with private_output(out / "map", FolderKind("a map")) as folder:
        (folder / "c").mkdir()
        (folder / "c" / "0").write_bytes(b"a library's")


def _done(_: object) -> None:
    pass


CASES: dict[str, Callable[[Path], None]] = {
    **{kind: partial(_table, f"answers{kind}") for kind in (".csv", ".jsonl", ".parquet")},
    "part": _part,
    "submission": _submission,
    "FHIR and DICOM SR": _reports,
    "case book and export": _book,
    "queue": _queue,
    "monitor": _monitor,
    "uploads": _uploads,
    "scans of the server": _scan_jobs,
    "ruler": _ruler,
    "scan at work": _work,
    "renewed": _renewed,
    "library": _library,
    "users": lambda out: add_user(out / "users.json", "anna", "a long password"),
    "DICOM key": lambda out: _done(read_key(out / "key", create=True)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("open_to_all")
def test_every_writer_closes_its_files_to_others(case: str, tmp_path: Path) -> None:
    CASES[case](tmp_path / "made" / "by us")
    assert modes(tmp_path) == {}
    assert any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.usefixtures("open_to_all")
def test_a_comparison_is_private_and_a_folder_of_somebody_keeps_its_mode(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    visits = visits_of(theirs)
    _comparison(visits, theirs)
    assert modes(theirs) == {}
    assert theirs.stat().st_mode & 0o777 == 0o755
    (theirs / "1" / scan_files.PAGE).chmod(0o644)
    small_visit(theirs / "1")  # the same place again
    assert modes(theirs) == {}


def test_a_umask_that_takes_all_leaves_the_owner_his(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        write_private(tmp_path / "a" / "b" / "one", "text")
        new_private(tmp_path / "a" / "two").close()
    finally:
        os.umask(before)
    assert modes(tmp_path) == {}


def test_these_packages_write_by_nothing_else() -> None:
    root = Path(__file__).parents[2] / "skindx"
    others = set()
    for path in (file for name in PACKAGES for file in (root / name).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            words = [*call.args, *(word.value for word in call.keywords)]
            opened = name == "open" and ast.unparse(call.func) != "temporary.open"
            writes = words[:1] and isinstance(words[0], ast.Constant) and str(words[0].value)[:1]
            created = any("O_CREAT" in ast.unparse(word) for word in words)
            if name in WRITERS or (opened and writes in set("wax")) or created:
                others.add((path.relative_to(root).as_posix(), name))
    assert others <= INSIDE, "write it by skindx.core.private_files"
