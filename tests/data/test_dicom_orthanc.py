"""A real PACS: photographs go in by C-STORE and STOW-RS, a dataset and answers come out."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("highdicom", reason="highdicom is not installed: extra clinic")
from command_line import Skindx
from orthanc import PASSWORD, USER, VARIABLE, Orthanc, orthanc, tool
from paint_images import paint
from vl_photos import vl_photo

from skindx.core.secret_hosts import ALLOWED
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.ledger import read_ledger
from skindx.data.manifest import read_manifest
from skindx.data.sources.dicom import DicomSource

EXPLAINED = {
    "Unrecognized defined term = <99SKINDX>": "our scheme for what no public one has",
    "Unrecognized defined term = <DMS>": "the tables of dciodvfy are older than the modality",
}
"""All that dciodvfy may warn of, and why it stays."""


def photos(folder: Path) -> list[Path]:
    """Write 20 photographs of ten patients, of two classes, in both modalities."""
    paths = [folder / f"{number}.dcm" for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(
            vl_photo(
                paint(number, 200, 160),
                patient=f"MRN-{number % 10}",
                study=f"{number % 10}-{number // 10}",
                jpeg=number % 3 > 0,
                dermoscopy=number % 4 == 0,
                AdmittingDiagnosesDescription=("naevus", "melanoma")[number % 2],
            )
        )
    return paths


@pytest.fixture(scope="module")
def pacs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    """Yield an Orthanc that holds the photographs."""
    folder = tmp_path_factory.mktemp("orthanc")
    paths = photos(folder)
    with pytest.MonkeyPatch.context() as patch, orthanc(folder) as server:
        patch.setenv(VARIABLE, PASSWORD)
        patch.setenv(ALLOWED, f"{VARIABLE}@*")
        # Of C-STORE, Debian's dcmtk does not know the class of dermoscopy.
        sent = [path for number, path in enumerate(paths) if number % 3 == 0 and number % 4]
        server.store(sent)
        server.stow([path for path in paths if path not in sent])
        yield server


def problems(file: Path) -> list[str]:
    """Return what dciodvfy says of a file, but for what is explained."""
    command = [tool("dciodvfy"), "-new", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("Err", "Warn"))]
    return [line for line in lines if not any(known in line for known in EXPLAINED)]


def test_the_photographs_of_these_tests_are_what_the_standard_asks_for(tmp_path: Path) -> None:
    assert [problem for path in photos(tmp_path)[:5] for problem in problems(path)] == []


def test_a_dataset_comes_out_of_a_pacs_and_goes_on_where_it_was_killed(
    pacs: Orthanc, tmp_path: Path
) -> None:
    server = {"url": pacs.url, "user": USER, "secret": f"env:{VARIABLE}", "page": 3}
    source = {"kind": "dicom", "server": server, "label": "AdmittingDiagnosesDescription"}
    recipe = {"name": "clinic", "sources": [source], "screen": {"not_skin": "off"}, "workers": 1}
    recipe["dedup"] = {"copies": "off"}
    out = tmp_path / "out"
    summary = build(BuildSettings.parse(recipe), out)
    assert (summary.found, summary.kept) == (20, 20)
    records = read_manifest(out)
    assert len({(record.patient, record.group, record.split) for record in records}) == 10
    assert sum(record.modality == "dermoscopic" for record in records) == 5
    assert PASSWORD not in (out / "recipe.yaml").read_text()

    ledger = out / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:6]) + lines[6][:40])
    kept = read_ledger(out)
    rows = DicomSource.parse({**source, "key": str(tmp_path / "out.dicom-key")}).gather(out)
    assert {row.sha256 for row in rows} == {record.sha256 for record in records}
    assert len(kept) == 5
    assert [row for row in rows if row.url in {row.url for row in kept}] == sorted(
        kept, key=lambda row: row.url
    )


def test_a_photograph_is_diagnosed_and_its_report_goes_back_into_its_study(
    pacs: Orthanc, tmp_path: Path, tiny_bundle: Path, skindx: Skindx
) -> None:
    ids = pacs.ask("/instances?PatientID=MRN-1").json()[0]
    study, series, image = (ids[tag]["Value"][0] for tag in ("0020000D", "0020000E", "00080018"))
    photo, report = tmp_path / "photo.dcm", tmp_path / "sr.dcm"
    photo.write_bytes(pacs.fetch(study, series, image))
    code, _, stderr = skindx("diagnose", tiny_bundle, photo, "--dicom-sr", report)
    assert (code, stderr) == (0, "")
    assert problems(report) == []
    pacs.store([report])

    (stored,) = pacs.ask(f"/studies/{study}/instances?Modality=SR").json()
    there = (stored[tag]["Value"][0] for tag in ("0020000E", "00080018"))
    back = tmp_path / "back.dcm"
    back.write_bytes(pacs.fetch(study, *there))
    command = [tool("dsrdump"), "+Pl", "+Pu", back]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in ("#MRN-1)", 'SCT,"Forearm")', f'"Source of Measurement")=(VLp image,"{image}")'):
        assert part in text
