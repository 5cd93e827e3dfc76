"""DICOM files as a source: folder, DICOMDIR, and servers that lie; patients stay together."""

import json
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pydicom", reason="pydicom is not installed: extra clinic")
from dicom_files import written as in_file
from local_site import Answer, LocalSite
from orthanc import tool
from paint_images import encode, paint
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian
from vl_photos import vl_photo

from skindx.core.errors import UserError
from skindx.core.secret_hosts import ALLOWED
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.ledger import LedgerRow, read_ledger
from skindx.data.manifest import read_manifest
from skindx.data.publish.published_rows import rows_of
from skindx.data.sources import dicomweb
from skindx.data.sources.dicom import DicomSource
from skindx.data.sources.dicomweb import DicomWebError, only_part
from skindx.data.splits.groups import GroupKeys, GroupSettings

CLASSES = ("naevus", "melanoma")
SECRETS = ("Secretname", "19640101", "MRN-", "A-S", "Referrer", "1.2.826", "2.25.")


def photos(classes: int = 2, each: int = 4, **elements: object) -> dict[str, bytes]:
    """Return files by relative path: four patients a class, each with a study a photo."""
    files = {}
    for number in range(classes * each):
        label = CLASSES[number % classes]
        patient, study = f"MRN-{number % classes}-{number // classes % 4}", f"S{number}"
        files[f"{label}/IM{number}"] = vl_photo(
            paint(number), patient=patient, study=study, jpeg=number % 3 > 0, **elements
        )
    return files


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def gathered(tmp_path: Path, **settings: object) -> list[LedgerRow]:
    (tmp_path / "out").mkdir(exist_ok=True)
    return DicomSource.parse({"kind": "dicom", **settings}).gather(tmp_path / "out")


def test_a_folder_becomes_a_dataset_that_names_nobody(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", photos(each=8))
    recipe = {
        "name": "clinic",
        "sources": [{"kind": "dicom", "path": str(folder), "licence": "CC0", "creator": "K"}],
        "screen": {"not_skin": "off"},
        "dedup": {"copies": "off"},
        "workers": 1,
    }
    out = tmp_path / "out"
    assert build(BuildSettings.parse(recipe), out).kept == 16
    records = read_manifest(out)
    first = records[0]
    facts = (first.age, first.sex, first.site, first.laterality, first.modality)
    assert facts == (62, "female", "arm", "left", "clinical")
    assert len({record.patient for record in records}) == 8
    assert len({record.study for record in records}) == 16
    by_patient = {(record.patient, record.group, record.split) for record in records}
    assert len(by_patient) == 8
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    everything += str(pq.read_table(out / "manifest.parquet").to_pylist()).encode()
    assert not [word for word in SECRETS if word.encode() in everything]
    given_away = str(rows_of(records, {}))
    assert not [word for word in ("patient-", "study-", "dicom:", "arm") if word in given_away]
    assert (tmp_path / "out.dicom-key").stat().st_mode & 0o777 == 0o600


def test_the_same_key_names_patients_alike_and_kept_ids_are_asked_for(tmp_path: Path) -> None:
    folder = str(written(tmp_path / "in", photos(each=1)))
    key = str(tmp_path / "key")
    first, again = (gathered(tmp_path, path=folder, key=key) for _ in range(2))
    assert [row.patient for row in first] == [row.patient for row in again]
    other = gathered(tmp_path, path=folder)
    assert {row.patient for row in other}.isdisjoint(row.patient for row in first)
    kept = gathered(tmp_path, path=folder, key=key, identifiers="kept")
    assert sorted(row.patient for row in kept) == ["MRN-0-0", "MRN-1-0"]


def test_a_dicomdir_is_read_by_its_list(tmp_path: Path) -> None:
    files = {f"IM{n}": vl_photo(paint(n), patient="P", study=f"S{n}", jpeg=False) for n in range(3)}
    folder = written(tmp_path / "in", files)
    (folder / "README").write_text("not listed")
    names = [tool("dcmmkdir"), "+D", "DICOMDIR", "-Pgp", "+I", *files]
    done = subprocess.run(names, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "IM2").unlink()
    rows = gathered(tmp_path, path=str(folder / "DICOMDIR"), label="StudyDescription")
    assert [row.status for row in rows] == ["no-label", "no-label", "unreadable"]
    with pytest.raises(UserError, match=r"IM0 is not a DICOMDIR .*; set `path` to"):
        gathered(tmp_path, path=str(folder / "IM0"), label="StudyDescription")


@pytest.mark.filterwarnings("ignore:Invalid value for VR CS")
def test_a_dicomdir_leads_to_no_file_outside_its_folder(tmp_path: Path) -> None:
    good = vl_photo(paint(0), patient="P", study="S")
    folder = written(tmp_path / "medium", {"IM0": good, "../SECRET": good})
    (folder / "LINK").symlink_to(tmp_path / "SECRET")
    index = Dataset()
    index.DirectoryRecordSequence = [Dataset() for _ in range(4)]
    for record, parts in zip(
        index.DirectoryRecordSequence, (["..", "SECRET"], "LINK", "IM0", "IM0"), strict=True
    ):
        record.DirectoryRecordType, record.ReferencedFileID = "IMAGE", parts
    (folder / "DICOMDIR").write_bytes(in_file(index, ExplicitVRLittleEndian))
    rows = gathered(tmp_path, path=str(folder / "DICOMDIR"), label="StudyDescription")
    assert [row.status for row in rows] == ["link-refused", "link-refused", "no-label"]


def test_a_patient_of_two_clinics_is_one_group(tmp_path: Path) -> None:
    keys = GroupKeys(GroupSettings())
    groups = set()
    for origin in ("north", "south"):
        photo = vl_photo(paint(0), patient="P", study=origin, StudyDescription="naevus")
        folder = written(tmp_path / origin, {"IM0": photo})
        wanted = {"path": str(folder), "origin": origin, "label": "StudyDescription"}
        (row,) = gathered(tmp_path, **wanted)
        assert row.source == f"dicom @ {origin}"
        groups |= set(keys.group_keys(row))
    assert len(groups) == 1


@pytest.mark.parametrize("patient", ["ANONYMOUS", "0000", "unknown"])
def test_a_dicom_photo_of_nobody_is_grouped_by_its_study(tmp_path: Path, patient: str) -> None:
    photos = {
        f"IM{n}": vl_photo(paint(n), patient=patient, study=f"S{n // 2}", StudyDescription="nevus")
        for n in range(4)
    }
    folder = written(tmp_path / "medium", photos)
    found = gathered(tmp_path, path=str(folder), label="StudyDescription")
    keys = [
        GroupKeys(GroupSettings()).group_keys(row)
        for row in sorted(found, key=lambda row: row.group)
    ]
    assert [len(each) for each in keys] == [1, 1, 1, 1]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert {row.patient for row in found} == {""}
    assert {row.group.partition("\n")[0] for row in found} == {patient}  # so that it is counted


def test_each_file_of_a_folder_has_its_reason(tmp_path: Path) -> None:
    good = vl_photo(paint(1), patient="P", study="S", ImageComments="naevus")
    files = {
        "a/good": good,
        "a/again": good,
        "b/half": good[:-500],
        "b/burned": vl_photo(paint(2), patient="P", study="S2", BurnedInAnnotation="YES"),
        "b/grey": vl_photo(
            paint(3)[..., :1], patient="P", study="S3", jpeg=False, SamplesPerPixel=1
        ),
        "photo.jpg": encode(paint(4)),
        "text": b"hello",
        "DICOMDIR": b"an index is no image",
    }
    folder = written(tmp_path / "in", files)
    (folder / "away").symlink_to(tmp_path)
    rows = gathered(tmp_path, path=str(folder), label="ImageComments")
    shown = {row.url: (row.status, row.label) for row in rows}
    (name,) = {url for url in shown if url.startswith("dicom:") and shown[url][0] == "stored"}
    assert shown.pop(name) == ("stored", "naevus")
    assert sorted(status for status, _ in shown.values()) == [
        "burned-in-text", "damaged", "link-refused", "not-dicom", "not-dicom",
        "unsupported-format",
    ]  # fmt: skip
    assert not [row for row in rows if row.path and row.status != "stored"]


def test_a_table_of_labels_joins_by_the_identifier(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", {"IM1": vl_photo(paint(1), patient="P", study="S")})
    table = tmp_path / "labels.csv"
    table.write_text("key,label,how\nA-S,naevus,histopathology\n")
    labels = {"path": str(table), "columns": {"confirmed": "how"}}
    (row,) = gathered(tmp_path, path=str(folder), labels=labels)
    assert (row.label, row.confirmed_by) == ("naevus", "histopathology")


BAD_SETTINGS = {
    "neither": ({}, "give either `path`"),
    "both": ({"path": "x", "server": {"url": "http://h/d"}}, "give either `path`"),
    "no label": ({"server": {"url": "http://h/d"}}, "a DICOM server has no class folders"),
    "a name": ({"path": "x", "label": "PatientName"}, "AdmittingDiagnosesDescription"),
    "login in the address": (
        {"server": {"url": "http://me:pw@h/d"}, "label": "ImageComments"},
        "server.url",
    ),
}


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS.values(), ids=list(BAD_SETTINGS))
def test_settings_that_cannot_work_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DicomSource.parse({"kind": "dicom", **settings})


SECRETS_REFUSED = {
    "itself": ("eyJhbGciOi", "https://pacs.example/d", "must not be the secret itself"),
    "not set": ("env:SKINDX_NO_SUCH", "https://pacs.example/d", "export SKINDX_NO_SUCH="),
    "two lines": ("file:two", "https://pacs.example/d", "must be one line of text"),
    "unencrypted": ("env:PACS_TOKEN", "http://pacs.example/d", "unencrypted"),
}


@pytest.mark.parametrize(
    ("secret", "url", "message"), SECRETS_REFUSED.values(), ids=list(SECRETS_REFUSED)
)
def test_a_secret_is_never_shown_and_never_sent_unencrypted(
    secret: str, url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACS_TOKEN", "topsecret")
    monkeypatch.chdir(tmp_path)
    Path("two").write_text("a\nb")
    server = {"url": url, "secret": secret}
    with pytest.raises(UserError, match=message) as error:
        gathered(tmp_path, server=server, label="ImageComments")
    assert "topsecret" not in str(error.value)
    assert "eyJ" not in str(error.value)
    assert not any((tmp_path / "out").iterdir())


class Pacs(LocalSite):
    """A DICOMweb server of one study and two photos, in which one thing may be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.files = [
            vl_photo(paint(n), patient="P", study="S", number=n, ImageComments="naevus")
            for n in range(2)
        ]
        headers = [read_header(file) for file in self.files]
        self.study = {"0020000D": headers[0]["study_uid"], "00100020": "P"}
        series, uids = headers[0]["series_uid"], [header["instance_uid"] for header in headers]
        at = f"/d/studies/{self.study['0020000D']}/series"
        others = {"0020000D": "1.2.3", "00080061": "CT"}
        self.list_of("/d/studies", [others, self.study])
        self.list_of(at, [{"0020000E": series, "00080060": "XC"}])
        self.list_of(f"{at}/{series}/instances", [{"00080018": uid} for uid in uids])
        self.images = [f"{at}/{series}/instances/{uid}" for uid in uids]
        for path, file in zip(self.images, self.files, strict=True):
            self.pages[path] = part(file)

    def list_of(self, path: str, results: list[dict[str, str]], matching: str = "") -> None:
        """Answer a search in pages of one."""
        for offset in range(len(results) + 1):
            page = [as_json(result) for result in results[offset : offset + 1]]
            query = f"{path}?{matching}limit=1&offset={offset}"
            self.pages[query] = Answer(json.dumps(page).encode())

    @property
    def server(self) -> dict[str, object]:
        return {"url": f"{self.origin}/d", "page": 1, "retries": 0, "max_bytes": 200_000}


def as_json(result: dict[str, str]) -> dict[str, object]:
    return {tag: {"vr": "UI", "Value": [value]} for tag, value in result.items()}


def read_header(file: bytes) -> dict[str, str]:
    import io

    import pydicom

    header = pydicom.dcmread(io.BytesIO(file), stop_before_pixels=True)
    return {
        "study_uid": str(header.StudyInstanceUID),
        "series_uid": str(header.SeriesInstanceUID),
        "instance_uid": str(header.SOPInstanceUID),
    }


def part(file: bytes, kind: str = 'multipart/related; boundary="b"') -> Answer:
    head = b"--b\r\nContent-Type: application/dicom\r\n\r\n"
    return Answer(head + file + b"\r\n--b--\r\n", headers={"Content-Type": kind})


def test_what_a_server_fails_to_give_is_a_row_and_comes_with_the_next_run(tmp_path: Path) -> None:
    stranger = part(vl_photo(paint(1), patient="Q", study="other", number=1))
    halves = part(b"x" * 500)
    halves.body = halves.body[:-7]
    failures = {
        "server-error": Answer(b"", 500),
        "half-answer": halves,
        "unreadable-answer": Answer(b"<html>", headers={"Content-Type": "text/html"}),
        "not-found": Answer(b"", 404),
        "another-study": stranger,
        "too-large": part(b"x" * 300_000),
        "damaged": part(vl_photo(paint(1), patient="P", study="S", number=1)[:-500]),
    }
    with Pacs() as pacs:
        wanted = {"server": pacs.server, "label": "ImageComments", "key": str(tmp_path / "key")}
        whole = pacs.pages[pacs.images[1]]
        for status, failure in failures.items():
            pacs.pages[pacs.images[1]] = failure
            rows = gathered(tmp_path, **wanted)
            assert sorted(row.status for row in rows) == sorted(["stored", status])
            if status != "damaged":
                assert pacs.asked.count(pacs.images[0]) == 1
        (tmp_path / "out" / "ledger.jsonl").rename(tmp_path / "old")
        pacs.pages[pacs.images[1]] = whole
        rows = gathered(tmp_path, **wanted)
        assert [row.status for row in rows] == ["stored", "stored"]
        pacs.asked.clear()
        assert gathered(tmp_path, **wanted) == rows
        assert not [path for path in pacs.asked if path in pacs.images]


def test_a_server_that_sends_elsewhere_gets_no_further(tmp_path: Path) -> None:
    with LocalSite(default=Answer(b"[]")) as other, Pacs() as pacs:
        where = {"Location": f"{other.origin}/d/studies"}
        for path, answer, message in (
            ("redirect", Answer(b"", 302, where), f"sends on to {other.netloc}, and redirects"),
            ("login", Answer(b"", 401), "does not accept server.user and server.secret"),
            ("garbage", Answer(b"<html>"), "not with a JSON list"),
            ("error", Answer(b"", 500), "answered 500; correct the settings below `server`"),
        ):
            pacs.pages["/d/studies?limit=1&offset=0"] = answer
            with pytest.raises(UserError, match=message):
                gathered(tmp_path, server=pacs.server, label="ImageComments")
            assert not read_ledger(tmp_path / "out"), path
            assert not (tmp_path / "out.dicom-key").exists()
        assert not other.asked


def test_a_server_that_asks_to_wait_is_waited_for_within_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(dicomweb, "time", SimpleNamespace(sleep=waits.append))
    with Pacs() as pacs:
        search = "/d/studies?limit=1&offset=0"
        whole = pacs.pages[search]
        assert isinstance(whole, Answer)
        pacs.pages[search] = [Answer(b"", 429, {"Retry-After": "7"}), whole]
        server = {**pacs.server, "retries": 1, "timeout_s": 10}
        assert len(gathered(tmp_path, server=server, label="ImageComments")) == 2
        assert waits == [7]
        pacs.pages[search] = Answer(b"", 503, {"Retry-After": "3600"})
        with pytest.raises(UserError, match="answered 503 and asked to wait 3600 s"):
            gathered(tmp_path, server=server, label="ImageComments")
        assert waits == [7]


def test_a_search_that_never_ends_ends_the_build(tmp_path: Path) -> None:
    with Pacs() as pacs:
        new = iter(range(1, 10**6))

        def endless(request: BaseHTTPRequestHandler) -> None:
            results = [{"0020000D": f"1.2.{next(new)}", "00080061": "CT"} for _ in range(3)]
            body = json.dumps(list(map(as_json, results))).encode()
            request.send_response(200)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        pacs.default = endless
        server = {**pacs.server, "max_pages": 7, "query": {"StudyDate": "2025"}}
        with pytest.raises(UserError, match=r"than server\.max_pages = 7"):
            gathered(tmp_path, server=server, label="ImageComments")
        assert len(pacs.asked) == len(set(pacs.asked)) == 7


def test_a_secret_goes_to_the_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACS_TOKEN", "topsecret")
    with Pacs() as pacs:
        key = tmp_path / "pacs key"
        key.write_text("topsecret\n")
        named = {"env:PACS_TOKEN": "PACS_TOKEN", f"file:{key}": str(key)}
        for secret, name in named.items():
            wanted = {"server": {**pacs.server, "secret": secret}, "label": "ImageComments"}
            line = f"{name}@{pacs.netloc}"
            monkeypatch.setenv(ALLOWED, f"{name}@127.0.0.1")  # another port may be another's
            with pytest.raises(UserError, match=f"send .* {name} to {pacs.netloc}; .*,{line}'"):
                gathered(tmp_path, **wanted)
            assert not pacs.asked
            monkeypatch.setenv(ALLOWED, line)
            gathered(tmp_path, **wanted)
            pacs.asked.clear()
        assert {headers["authorization"] for headers in pacs.headers} == {"Bearer topsecret"}
    assert b"topsecret" not in (tmp_path / "out" / "ledger.jsonl").read_bytes()


def test_one_part_is_taken_and_no_other_number() -> None:
    kind = 'multipart/related; type="application/dicom"; boundary=b'
    assert only_part(kind, b"--b\r\nA: 1\r\n\r\n\r\nfile\r\n--b--") == b"\r\nfile"
    two = b"--b\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--b--"
    with pytest.raises(DicomWebError, match="none or several"):
        only_part(kind, b"--b\r\nA: 1\r\n\r\n" + two)
    with pytest.raises(DicomWebError, match="none or several"):
        only_part(kind, b"--b--")
