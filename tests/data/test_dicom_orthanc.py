"""A real PACS: photographs go in by C-STORE and STOW-RS, a dataset and answers come out."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from orthanc import PASSWORD, USER, Orthanc, orthanc, tool
from paint_images import paint
from vl_photos import vl_photo

from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.ledger import read_ledger
from skindx.data.manifest import read_manifest
from skindx.data.sources.dicom import DicomSource

pytest.importorskip("pydicom")

EXPLAINED = ("Unrecognized defined term <DMS> for value 1 of attribute <Modality>",)
"""Of dciodvfy: its tables are older than the modality."""


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
    with orthanc(folder) as server:
        # Of C-STORE, Debian's dcmtk does not know the class of dermoscopy.
        sent = [path for number, path in enumerate(paths) if number % 3 == 0 and number % 4]
        server.store(sent)
        server.stow([path for path in paths if path not in sent])
        yield server


def test_our_photographs_are_what_the_standard_asks_for(tmp_path: Path) -> None:
    program = tool("dciodvfy")
    for path in photos(tmp_path)[:5]:
        done = subprocess.run([program, path], capture_output=True, text=True, check=False)
        problems = [line for line in done.stderr.splitlines() if line.startswith(("Err", "Warn"))]
        assert [line for line in problems if not line.endswith(EXPLAINED)] == []


def test_a_dataset_comes_out_of_a_pacs_and_goes_on_where_it_was_killed(
    pacs: Orthanc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACS_PASSWORD", PASSWORD)
    server = {"url": pacs.url, "user": USER, "secret": "env:PACS_PASSWORD", "page": 3}
    source = {"kind": "dicom", "server": server, "label": "AdmittingDiagnosesDescription"}
    recipe = {"name": "clinic", "sources": [source], "screen": {"not_skin": "off"}, "workers": 1}
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
