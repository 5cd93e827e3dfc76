from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_dataset import jpeg, skin, tiny_dataset

from skindx.core.errors import UserError
from skindx.data.embedding_files import EMBEDDINGS, read_embeddings
from skindx.data.layout import store_bytes
from skindx.data.manifest import Issue, write_issues
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.review.image_embeddings import (
    EmbedSettings,
    embed,
    embed_with_bundle,
    stored_duplicates,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EmbedSettings:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    net = build_classifier(ClassifierSettings(model="test_resnet"), 7).net
    save_file(net.state_dict(), path)
    return EmbedSettings(model="test_resnet", weights=path, preprocess=Preprocess(size=64))


def test_one_vector_an_image_whatever_stands_beside_it(
    settings: EmbedSettings, tmp_path: Path
) -> None:
    records = tiny_dataset(tmp_path, 12)
    steps: list[tuple[int, int]] = []
    made = embed(tmp_path, settings, tmp_path / EMBEDDINGS, lambda *step: steps.append(step))
    assert steps == [(8, 12), (12, 12)]
    assert made.sha256s == tuple(record.sha256 for record in records)
    assert np.allclose(np.linalg.norm(made.vectors_ND, axis=1), 1, atol=1e-5)
    assert made.model.startswith("test_resnet at 64, ")
    stored = read_embeddings(tmp_path / EMBEDDINGS)
    assert stored.model == made.model
    assert np.abs(stored.vectors_ND - made.vectors_ND).max() < 1e-3
    again = embed(tmp_path, settings, tmp_path / "again.parquet")
    assert np.array_equal(again.vectors_ND, made.vectors_ND)


def test_the_weights_decide_and_are_named(settings: EmbedSettings, tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 4)
    torch.manual_seed(2)
    other = tmp_path / "other.safetensors"
    save_file(build_classifier(ClassifierSettings(model="test_resnet"), 2).net.state_dict(), other)
    first = embed(tmp_path, settings, tmp_path / EMBEDDINGS)
    changed = settings.model_copy(update={"weights": other})
    second = embed(tmp_path, changed, tmp_path / EMBEDDINGS)
    assert first.model != second.model
    assert not np.allclose(first.vectors_ND, second.vectors_ND, atol=1e-3)


def test_a_bundle_embeds_as_well(tiny_bundle: Path, tmp_path: Path) -> None:
    records = tiny_dataset(tmp_path, 4)
    made = embed_with_bundle(tmp_path, tiny_bundle, tmp_path / EMBEDDINGS)
    assert made.sha256s == tuple(record.sha256 for record in records)
    assert made.model.startswith("resnet of bundle tiny, ")


def test_wrong_weights_leave_nothing(settings: EmbedSettings, tmp_path: Path) -> None:
    tiny_dataset(tmp_path, 4)
    absent = settings.model_copy(update={"weights": tmp_path / "no.safetensors"})
    with pytest.raises(UserError, match="the weights file"):
        embed(tmp_path, absent, tmp_path / EMBEDDINGS)
    state = build_classifier(ClassifierSettings(model="test_resnet"), 2).net.state_dict()
    save_file({k: v * torch.nan if v.is_floating_point() else v for k, v in state.items()},
              tmp_path / "nan.safetensors")  # fmt: skip
    broken = settings.model_copy(update={"weights": tmp_path / "nan.safetensors"})
    with pytest.raises(UserError, match="not finite"):
        embed(tmp_path, broken, tmp_path / EMBEDDINGS)
    assert not (tmp_path / EMBEDDINGS).exists()


def test_stored_near_duplicates_are_known_again(tmp_path: Path) -> None:
    records = tiny_dataset(tmp_path, 8)
    twin, path = store_bytes(tmp_path, jpeg(skin(3), quality=50), ".jpg")
    gone = "f" * 64
    stays = records[0]
    write_issues(
        tmp_path,
        [
            Issue("twin.jpg", twin, stays.label, "near-duplicate", "", stays.sha256),
            Issue("gone.jpg", gone, stays.label, "near-duplicate", "", stays.sha256),
            Issue("of nobody.jpg", "e" * 64, "a", "near-duplicate", "", "d" * 64),
            Issue("other.jpg", twin, "b", "conflicting-duplicate"),
        ],
    )
    (found,) = stored_duplicates(tmp_path, records)
    assert (found.sha256, found.path, found.source_url) == (twin, path, "twin.jpg")
    assert (found.group, found.split) == (stays.group, stays.split)
    assert (found.width, found.height) == (120, 96)
