"""Recipes of at most ten lines for public sets and scrapers' folders, without any known layout.

The look-alikes come from a generator that lies beside the checkout, or in SKINDX_LAYOUTS: it writes
the files, and says what a reader has to find in them.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from skindx.data.ledger import LedgerRow
from skindx.data.origin import UNKNOWN, parse_licence
from skindx.data.recipe import load_build_settings
from skindx.data.splits.groups import GroupKeys

RECIPES = {
    "ham10000_kaggle": """\
name: ham10000
sources:
  - kind: files
    path: HAM10000_metadata.csv
    files: HAM10000_images_part_*
    licence: CC BY-NC 4.0
    modality: dermoscopic
    columns: {file: image_id, label: dx, confirmed: dx_type, group: lesion_id, age: age,
      sex: sex, site: localization}
""",
    "ham10000_dataverse": """\
name: ham10000
sources:
  - kind: files
    path: HAM10000_metadata.tab
    files: HAM10000_images_part_*.zip
    licence: CC BY-NC 4.0
    modality: dermoscopic
    columns: {file: image_id, label: dx, confirmed: dx_type, group: lesion_id, age: age,
      sex: sex, site: localization}
""",
    "isic2016": """\
name: isic2016
sources:
  - &training {kind: files, path: ISBI2016_ISIC_Part3_Training_GroundTruth.csv, split: train,
     files: ISBI2016_ISIC_Part3_Training_Data, header: [file, label], columns: {group: ""},
     licence: CC0 1.0, modality: dermoscopic}
  - {<<: *training, path: ISBI2016_ISIC_Part3_Test_GroundTruth.csv, split: test,
     files: ISBI2016_ISIC_Part3_Test_Data, labels: {0.0: benign, 1.0: malignant}}
""",
    "isic2018": """\
name: isic2018
sources:
  - kind: files
    path: ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv
    files_in: .
    files: ISIC2018_Task3_Training_Input
    join: [{path: ISIC2018_Task3_Training_LesionGroupings.csv, key: image}]
    one_hot: [MEL, NV, BCC, AKIEC, BKL, DF, VASC]
    columns: {file: image, group: lesion_id, confirmed: diagnosis_confirm_type}
    <<: {licence: CC BY-NC 4.0, modality: dermoscopic}
""",
    "isic2019": """\
name: isic2019
sources:
  - kind: files
    path: ISIC_2019_Training_GroundTruth.csv
    files: ISIC_2019_Training_Input
    join: [{path: ISIC_2019_Training_Metadata.csv, key: image}]
    one_hot: [MEL, NV, BCC, AK, BKL, DF, VASC, SCC, UNK]
    labels: {UNK: null}
    columns: {file: image, group: lesion_id, age: age_approx, sex: sex, site: anatom_site_general}
    <<: {licence: CC BY-NC 4.0, modality: dermoscopic}
""",
    "isic2024": """\
name: isic2024
sources:
  - {kind: files, path: train-metadata.csv, files: train-image.hdf5, modality: clinical,
     columns: {file: isic_id, label: target, group: patient_id, age: age_approx, sex: sex,
       site: anatom_site_general, licence: copyright_license, attribution: attribution},
     values: {copyright_license: {CC-0: CC0 1.0, CC-BY: CC BY 4.0, CC-BY-NC: CC BY-NC 4.0}}}
""",
    "isic_cli": """\
name: isic
sources:
  - {kind: files, path: metadata.csv, files: "{}.jpg",
     levels: [diagnosis_3, diagnosis_2, diagnosis_1],
     combine: {site: [anatom_site_3, anatom_site_2, anatom_site_1]},
     columns: {file: isic_id, group: [patient_id, lesion_id], age: age_approx, sex: sex, site: site,
       licence: copyright_license, skin_type: fitzpatrick_skin_type, modality: image_type,
       confirmed: diagnosis_confirm_type},
     values: {copyright_license: {CC-0: CC0 1.0, CC-BY: CC BY 4.0, CC-BY-NC: CC BY-NC 4.0}}}
""",
    "isic_snapshot": """\
name: isic
sources:
  - {kind: files, path: ISIC_images.zip/metadata.csv, files: images,
     levels: [diagnosis_3, diagnosis_2, diagnosis_1],
     combine: {site: [anatom_site_3, anatom_site_2, anatom_site_1]},
     columns: {file: isic_id, group: [patient_id, lesion_id], age: age_approx, sex: sex, site: site,
       licence: copyright_license, skin_type: fitzpatrick_skin_type, modality: image_type,
       confirmed: diagnosis_confirm_type},
     values: {copyright_license: {CC-0: CC0 1.0, CC-BY: CC BY 4.0, CC-BY-NC: CC BY-NC 4.0}}}
""",
    "bcn20000": """\
name: bcn20000
sources:
  - kind: files
    path: bcn_20k_train.csv
    files: BCN_20k_train/bcn_20k_train
    licence: CC BY-NC 4.0
    modality: dermoscopic
    columns: {file: bcn_filename, label: diagnosis, group: lesion_id, age: age_approx, sex: sex,
      site: anatom_site_general}
""",
    "pad_ufes_20": """\
name: pad-ufes-20
sources:
  - kind: files
    path: metadata.csv
    files: images/imgs_part_*
    licence: CC BY 4.0
    modality: clinical
    values: {biopsed: {true: histopathology}}
    columns: {file: img_id, label: diagnostic, group: [patient_id, lesion_id], age: age,
      sex: gender, site: region, skin_type: fitspatrick, confirmed: biopsed}
""",
    "ddi": """\
name: ddi
sources:
  - kind: files
    path: ddi_metadata.csv
    licence: Stanford University Dataset Research Use Agreement
    modality: clinical
    columns: {file: DDI_file, label: disease, skin_type: skin_tone, group: ""}
""",
    "ph2": """\
name: ph2
sources:
  - {kind: files, path: PH2_dataset.txt, on_conflict: list, modality: dermoscopic,
     files: "PH2 Dataset images/{}/{}_Dermoscopic_Image/{}.bmp",
     labels: {0: Common Nevus, 1: Atypical Nevus, 2: Melanoma},
     values: {Histological Diagnosis: {"*": histopathology}},
     columns: {file: Name, label: Clinical Diagnosis, confirmed: Histological Diagnosis, group: ""},
     licence: research and education only}
""",
    "fitzpatrick17k": """\
name: fitzpatrick17k
sources:
  - kind: files
    path: fitzpatrick17k.csv
    files: data/finalfitz17k
    modality: clinical
    where_not: {qc: 3 Wrongly labelled}
    columns: {file: md5hash, skin_type: fitzpatrick_scale, page: url, group: ""}
""",
    "scin": """\
name: scin
sources:
  - {kind: files, path: dataset/scin_cases.csv, files_in: ., modality: clinical,
     join: [{path: dataset/scin_labels.csv, key: case_id}],
     images: [{file: image_1_path}, {file: image_2_path}, {file: image_3_path}],
     one_hot: weighted_skin_condition_label, combine: {site: body_parts_*},
     columns: {group: case_id, sex: sex_at_birth, skin_type: fitzpatrick_skin_type,
       age: age_group, site: site},
     licence: SCIN Data Use License}
""",
    "msld_v2": """\
name: msld
sources:
  - kind: folder
    path: Original Images/FOLDS/fold1
    group_pattern: "^([A-Z]+_[0-9]+)_"
    modality: clinical
""",
    "dermnet_kaggle": """\
name: dermnet
sources: [{kind: folder, path: ., modality: clinical, splits: kept}]
""",
    "isic9_kaggle": """\
name: isic9
sources:
  - kind: folder
    path: Skin cancer ISIC The International Skin Imaging Collaboration
    splits: kept
    modality: dermoscopic
""",
    "melanoma10000": """\
name: melanoma
sources: [{kind: folder, path: melanoma_cancer_dataset, splits: kept, modality: dermoscopic}]
""",
    "dermamnist": """\
name: dermamnist
sources:
  - kind: files
    path: dermamnist_64.npz
    modality: dermoscopic
    licence: CC BY-NC 4.0
    columns: {file: images, label: labels, split: split, group: ""}
""",
    "hf_jsonl": """\
name: hub
sources:
  - kind: huggingface
    path: .
    splits: kept
    licence: CC BY 4.0
    columns: {group: patient, age: age, sex: sex, skin_type: fitzpatrick, caption: text}
""",
    "hf_parquet": """\
name: hub
sources: [{kind: huggingface, path: ., splits: kept, licence: CC BY 4.0}]
""",
    "roboflow_yolov8": """\
name: roboflow
sources:
  - {kind: folder, path: ., layout: yolo, splits: kept, licence: CC BY 4.0,
     group_pattern: "^(.+)_jpg.rf."}
""",
    "roboflow_coco": """\
name: roboflow
sources:
  - {kind: folder, path: ., layout: coco, splits: kept, licence: CC BY 4.0,
     group_pattern: "^(.+)_jpg.rf."}
""",
    "img2dataset_files": """\
name: scraped
sources:
  - kind: sidecars
    path: .
    columns: {label: label, page: url, caption: caption}
""",
    "img2dataset_webdataset": """\
name: scraped
sources:
  - kind: sidecars
    path: .
    columns: {label: label, page: url, caption: caption}
""",
    "bing_image_downloader": """\
name: scraped
sources: [{kind: folder, path: dataset}]
""",
    "icrawler": """\
name: scraped
sources: [{kind: folder, path: .}]
""",
    "dermnet_scraper": """\
name: scraped
sources: [{kind: folder, path: Dataset, modality: clinical}]
""",
    "commons_dump": """\
name: commons
sources:
  - kind: sidecars
    path: commons
    records: query.pages
    columns: {file: imageinfo.0.url, licence: imageinfo.0.extmetadata.LicenseShortName.value,
      creator: imageinfo.0.extmetadata.Artist.value, page: imageinfo.0.descriptionurl}
""",
    "gallery_dl": """\
name: commons
sources:
  - kind: sidecars
    path: gallery-dl
    columns: {licence: extmetadata.LicenseShortName.value, creator: extmetadata.Artist.value,
      page: descriptionurl}
""",
    "openverse_dump": """\
name: openverse
sources:
  - kind: sidecars
    path: openverse
    records: results
    combine: {licence: "{license} {license_version}"}
    columns: {file: id, licence: licence, creator: creator, page: foreign_landing_url,
      attribution: attribution}
""",
    "excel_semicolon": """\
name: clinic
sources:
  - kind: files
    path: Patienten.csv
    modality: clinical
    values: {Histologie: {true: histopathology}}
    columns: {file: Datei, label: Diagnose, group: Patient, age: Alter, sex: Geschlecht,
      site: Lokalisation, skin_type: Hauttyp, confirmed: Histologie}
""",
    "excel_xlsx": """\
name: clinic
sources:
  - {kind: files, path: pictures.xlsx, sheet: pictures, modality: clinical,
     files: "pictures/{:04}.jpg",
     join: [{path: pictures.xlsx, sheet: people, key: patient}],
     values: {biopsy: {true: histopathology}},
     columns: {file: picture, label: diagnosis, group: patient, age: age, sex: sex,
       skin_type: skin type, site: site, confirmed: biopsy}}
""",
}

_BESIDE = [parent / "shared/tools/layouts" for parent in Path(__file__).parents]
_GIVEN = [Path(os.environ["SKINDX_LAYOUTS"])] if "SKINDX_LAYOUTS" in os.environ else []
GENERATOR = next((one for one in (*_GIVEN, *_BESIDE) if (one / "make.py").is_file()), None)
_WRITE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import make
for name in sys.argv[4:]:
    out = make.Out(Path(sys.argv[2], name))
    make.SETS[name].build(out, make.read_cases(Path(sys.argv[3]), 28, make.SETS[name].only))
    expected = make.expected(name, make.SETS[name], out, True)
    Path(sys.argv[2], f"{name}.json").write_text(json.dumps(expected), encoding="utf-8")
"""


@pytest.fixture(scope="module")
def look_alikes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all look-alikes, of small painted pictures."""
    if GENERATOR is None:
        pytest.skip("the generator of look-alikes is not here; SKINDX_LAYOUTS names its folder")
    folder = tmp_path_factory.mktemp("layouts")
    rows = ["image,dx,lesion_id"]  # no patient of these lesions has the number zero
    (folder / "pictures" / "images").mkdir(parents=True)
    for dx in ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"):
        for number in range(18):
            name = f"ISIC_{len(rows):07d}"
            rows.append(f"{name},{dx},LES_{dx}{number // 2 if number < 8 else number}")
            painted = Image.new("RGB", (24, 18), (len(rows), 120, 90))
            painted.save(folder / "pictures" / "images" / f"{name}.jpg")
    (folder / "pictures" / "index.csv").write_text("\n".join(rows), encoding="utf-8")
    paths = (GENERATOR, folder, folder / "pictures")
    subprocess.run([sys.executable, "-c", _WRITE, *map(str, paths), *RECIPES], check=True)
    return folder


def facts(row: LedgerRow) -> dict[str, Any]:
    return {
        "age": row.age,
        "sex": row.sex,
        "site": row.site,
        "skin_type": row.skin_type,
        "confirmation": row.confirmed_by,
    }


def licence(text: str) -> str:
    parsed = parse_licence(text)
    return text if parsed == UNKNOWN else parsed.id


def wanted_values(counts: dict[str, int], field: str) -> dict[str, int]:
    """Return what arrives of the values that are there: of a range of ages its middle."""
    if field == "age":
        numbers = {
            age: [int(part) for part in age.split("_") if part.isdecimal()] for age in counts
        }
        pairs = ((numbers[age] or [int(age)], count) for age, count in counts.items())
        counts = Counter()
        for parts, count in pairs:
            counts[f"{sum(parts) / len(parts):g}"] += count
    # A band of two skin types is neither of them: it counts as unknown, and the build says so.
    return {value: count for value, count in counts.items() if not value.endswith("(band)")}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_finds_what_is_there(
    look_alikes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert RECIPES[name].count("\n") <= 10
    (tmp_path / "recipe.yaml").write_text(RECIPES[name], encoding="utf-8")
    wanted = json.loads((look_alikes / f"{name}.json").read_text(encoding="utf-8"))
    if any("train-image.hdf5 is not written" in text for text in wanted.get("skipped", ())):
        pytest.skip("h5py is not installed; the extra data has it")
    monkeypatch.chdir(look_alikes / name)
    settings = load_build_settings(tmp_path / "recipe.yaml")
    found = [row for one in settings.sources for row in one.gather(tmp_path / "out")]
    rows = [row for row in found if row.status == "stored"]
    assert len(rows) == wanted["images"]
    assert Counter(row.label for row in rows) == wanted["classes"]

    keys = [GroupKeys(settings.groups).group_keys(row) for row in rows]
    assert sum(not key for key in keys) == wanted["images_without_group"]
    groups: list[set[str]] = []
    for key in filter(None, keys):
        tied = [one for one in groups if one & set(key)]
        groups = [one for one in groups if one not in tied] + [set(key).union(*tied)]
    assert len(groups) == wanted["groups"]

    for field, number in wanted["fields"].items():
        values = [facts(row)[field] for row in rows if facts(row)[field] not in (None, "")]
        banded = name == "ddi" and field == "skin_type"
        assert len(values) == (0 if banded else number), field
        if field != "site" and values:  # a site has the name of our list of sites
            texts = Counter(f"{one:g}" if isinstance(one, float) else str(one) for one in values)
            assert texts == wanted_values(wanted["values"][field], field), field
    assert Counter(licence(row.licence) for row in rows) == Counter(
        {licence(text): count for text, count in wanted["licence"].items()}
    )
    splits = {key.replace("valid", "val"): count for key, count in wanted["splits"].items()}
    assert Counter(row.split for row in rows if row.split) == splits
    assert {one.stated_modality() for one in settings.sources} == set(wanted["modality"])
    notes = " ".join(note for one in settings.sources for note in one.preview().notes)
    if name == "ddi":
        assert "skin types are none of I to VI and count as unknown, such as" in notes
    if name in ("commons_dump", "gallery_dl", "openverse_dump"):
        assert all(row.creator.startswith("Author") for row in rows)
