"""What a bundle knows of its images recognises their copies, and not strangers."""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.data.copies.describe import Description, describe_bytes
from skindx.models.bounded_files import load_tensors, save_tensors
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import Forgotten, forget
from skindx.models.copy_recognition import CopyRecognition, RecognisedCopy
from skindx.models.fingerprints import FINGERPRINTS, Fingerprints

Pixels = NDArray[np.uint8]


def photo(seed: int) -> Pixels:
    """Return structure at many scales, which no other seed has."""
    random = np.random.default_rng(seed)
    total = np.zeros((150, 200, 3), np.float32)
    for cells in (3, 6, 12, 25, 50):
        part = random.normal(size=(cells, cells + 1, 3)).astype(np.float32)
        total += cv2.resize(part, (200, 150), interpolation=cv2.INTER_CUBIC)
    return np.rint(128 + 22 * total).clip(0, 255).astype(np.uint8)


def jpeg(pixels: Pixels, quality: int = 85) -> Description:
    return describe_bytes(cv2.imencode(".jpg", pixels, [1, quality])[1].tobytes())


@pytest.fixture(scope="module")
def prints() -> Fingerprints:
    return Fingerprints.from_images((f"{seed:064x}", jpeg(photo(seed), 95)) for seed in range(12))


def changes(pixels: Pixels) -> Iterator[tuple[str, Pixels, str]]:
    yield "encoded", pixels, "whole"
    yield "square", cv2.resize(pixels, (180, 180), interpolation=cv2.INTER_AREA), "whole"
    yield "small", cv2.resize(pixels, (100, 75), interpolation=cv2.INTER_AREA), "whole"
    yield "mirrored", np.ascontiguousarray(pixels[:, ::-1]), "whole"
    yield "turned", np.ascontiguousarray(np.rot90(pixels)), "whole"
    yield "cropped", np.ascontiguousarray(pixels[12:147, 3:183]), "part"
    yield "mirrored crop", np.ascontiguousarray(pixels[12:147, 3:183][:, ::-1]), "part"


def recognised(
    prints: Fingerprints, images: Iterable[tuple[str, Description]]
) -> Iterator[RecognisedCopy]:
    return CopyRecognition(prints).recognise(images)


def test_copies_are_recognised_by_kind(prints: Fingerprints) -> None:
    cases = list(changes(photo(5)))
    copies = list(recognised(prints, ((name, jpeg(pixels, 70)) for name, pixels, _ in cases)))
    assert [(copy.sha256, copy.kind) for copy in copies] == [
        (name, kind) for name, _, kind in cases
    ]
    assert {copy.of for copy in copies} == {f"{5:064x}"}


def test_strangers_and_plain_images_are_not(prints: Fingerprints) -> None:
    plain = np.full((150, 200, 3), 128, np.uint8)
    strangers = [("plain", jpeg(plain)), *((str(n), jpeg(photo(n))) for n in range(100, 112))]
    assert list(recognised(prints, strangers)) == []
    nothing = Fingerprints.from_images([])
    both = nothing.joined(prints.without([f"{5:064x}"])).joined(prints)
    crop = [("x", jpeg(photo(5)[12:147, 3:183]))]
    assert list(recognised(both, crop)) == list(recognised(prints, crop)) != []
    assert (len(nothing), list(recognised(nothing, strangers))) == (0, [])
    assert list(recognised(Fingerprints.from_images(strangers[:1]), [("5", jpeg(photo(5)))])) == []


def test_a_bundle_keeps_them_and_loses_removed_images(prints: Fingerprints, tmp_path: Path) -> None:
    path = pack_tiny(tmp_path / "bundle", fingerprints=prints).path
    read = open_bundle(path).fingerprints()
    assert read is not None
    assert read.sha256s == prints.sha256s
    five = [("x", jpeg(photo(5)[12:147, 3:183]))]
    assert list(recognised(read, five)) == list(recognised(prints, five))
    assert (path / FINGERPRINTS).stat().st_size < 12 * 720 + 600
    assert forget(path, [f"{5:064x}", "f" * 64]) == Forgotten(fingerprints=1)
    left = open_bundle(path).fingerprints()
    assert left is not None
    assert len(left) == 11
    assert list(recognised(left, five)) == []
    six = [("x", jpeg(photo(6)[12:147, 3:183]))]
    assert list(recognised(left, six)) == list(recognised(prints, six))
    assert bytes.fromhex(f"{5:064x}") not in (path / FINGERPRINTS).read_bytes()
    assert forget(path, [f"{5:064x}"]) == Forgotten()
    assert open_bundle(pack_tiny(tmp_path / "older").path).fingerprints() is None


@pytest.mark.parametrize(
    ("name", "value"), [("starts", 9), ("starts", -1), ("sides", 0), ("hashes", None)]
)
def test_a_file_that_does_not_fit_is_refused(
    name: str, value: int | None, prints: Fingerprints, tmp_path: Path
) -> None:
    prints.save(tmp_path)
    tensors = {key: part.clone() for key, part in load_tensors(tmp_path / FINGERPRINTS).items()}
    tensors[name][1] = value or 0
    if value is None:
        tensors[name] = tensors[name][1:].contiguous()
    (tmp_path / FINGERPRINTS).unlink()
    save_tensors(tensors, tmp_path / FINGERPRINTS)
    with pytest.raises(UserError, match="does not have the fingerprints of 12 images"):
        Fingerprints.load(tmp_path)


def test_an_older_file_has_plain_points_and_is_read_alike(
    prints: Fingerprints, tmp_path: Path
) -> None:
    prints.save(tmp_path)
    file, size = tmp_path / FINGERPRINTS, (tmp_path / FINGERPRINTS).stat().st_size
    tensors = {key: part.clone() for key, part in load_tensors(file).items()}
    plain = {"points": prints.points_P4, "codes": prints.codes_PD}
    save_tensors({**tensors, **{k: torch.from_numpy(v) for k, v in plain.items()}}, file)
    older = Fingerprints.load(tmp_path)
    assert file.stat().st_size > 1.15 * size
    prints.save(tmp_path)
    newer = Fingerprints.load(tmp_path)
    for read in (older, newer):
        np.testing.assert_array_equal(read.points_P4, prints.points_P4)
        np.testing.assert_array_equal(read.codes_PD, prints.codes_PD)


@pytest.mark.parametrize("change", ["longer", "shorter", "cut", "no zlib", "more behind"])
def test_what_unpacks_to_another_length_is_refused(
    change: str, prints: Fingerprints, tmp_path: Path
) -> None:
    prints.save(tmp_path)
    tensors = {key: part.clone() for key, part in load_tensors(tmp_path / FINGERPRINTS).items()}
    packed, codes = tensors["codes"].numpy().tobytes(), prints.codes_PD.tobytes()
    forged = {
        "longer": zlib.compress(codes + bytes(10**7)),
        "shorter": zlib.compress(codes[:-1]),
        "cut": packed[:-4],
        "no zlib": bytes(len(packed)),
        "more behind": packed + b"x",
    }[change]
    tensors["codes"] = torch.frombuffer(bytearray(forged), dtype=torch.uint8)
    save_tensors(tensors, tmp_path / FINGERPRINTS)
    with pytest.raises(UserError, match="does not have the fingerprints of 12 images"):
        Fingerprints.load(tmp_path)


def test_tensors_are_for_whom_the_umask_allows(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    save_tensors({"one": torch.zeros(1)}, tmp_path / "tensors")
    assert (tmp_path / "tensors").stat().st_mode == plain.stat().st_mode
