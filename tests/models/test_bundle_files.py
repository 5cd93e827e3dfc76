"""What a stranger may have put into a bundle is refused in one sentence, at once."""

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from forged_bundle import WHOLE, change_index, copy_bundle, forge
from hostile_images import strew
from safetensors.torch import load_file, save

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import Bundle, open_bundle, write_index
from skindx.models.bundle.detach import unpack
from skindx.taxonomy import Taxonomy

WEIGHTS = "members/a/model.safetensors"


def _refused(bundle: Path, said: str, load: Callable[[Bundle], object] = lambda _: None) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load(open_bundle(bundle))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pretrained_cfg": {"url": "http://127.0.0.1:9/w.pth"}}, "'pretrained_cfg' is not"),
        ({"pretrained_cfg": {"file": "/etc/passwd"}}, "'pretrained_cfg' is not"),
        ({"checkpoint_path": "/etc/passwd"}, "'checkpoint_path' is not"),
        ({"pretrained": True}, "'pretrained' is not"),
        ({"cache_dir": "/tmp"}, "'cache_dir' is not"),
        ({"pretrained_cfg_overlay": {"url": "http://x"}}, "'pretrained_cfg_overlay'"),
        ({"num_classes": 10**9}, "'num_classes' is not"),
        ({"drop_rate": "0.1"}, "drop_rate cannot be"),
        ({"drop_rate": 1e308}, "drop_rate cannot be"),
        ({"img_size": 10**9}, "img_size cannot be"),
        ({"act_layer": "os.system"}, "act_layer cannot be"),
        ({"pad_type": ["same"]}, "pad_type cannot be"),
    ],
)
def test_arguments_of_timm_are_a_short_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    bundle = copy_bundle(tmp_path)
    change_index(bundle, ("members", 0, "classifier", "model_args"), arguments)
    monkeypatch.setattr(socket, "socket", None)
    _refused(bundle, said)


@pytest.mark.parametrize(
    "model",
    [
        "hf-hub:timm/resnet18.a1_in1k",
        "local-dir:/etc",
        "resnet18.local-dir:/etc",
        "../../resnet18",
        "resnet18/../resnet18",
        "r" * 200,
        "",
    ],
)
def test_a_model_is_a_name_of_timms_own_list(tmp_path: Path, model: str) -> None:
    bundle = copy_bundle(tmp_path)
    change_index(bundle, ("members", 0, "classifier", "model"), model)
    _refused(bundle, "'members.0.classifier.model'")


@pytest.mark.parametrize("model", ["resnet18", "vit_gigantic_patch14_224", "test_efficientnet.x"])
def test_a_network_other_than_its_weights_is_not_built(tmp_path: Path, model: str) -> None:
    """The largest takes 7 GB: it is compared with the file before it takes any."""
    bundle = copy_bundle(tmp_path)
    change_index(bundle, ("members", 0, "classifier", "model"), model)
    _refused(bundle, "does not have the tensors|do not fit|contradict", Bundle.ensemble)


def test_environment_variables_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "swordfish")
    bundle = copy_bundle(tmp_path)
    change_index(bundle, ("name",), "${SECRET}")
    text = (bundle / "taxonomy.yaml").read_text()
    forge(
        bundle,
        "taxonomy.yaml",
        text.replace("reviewed_by: null", "reviewed_by: ${SECRET}").encode(),
    )
    opened = open_bundle(bundle)
    assert (opened.spec.name, opened.taxonomy.reviewed_by) == ("${SECRET}", "${SECRET}")


def _bomb(depth: int = 9) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, depth)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_bomb(), r"alias \*a0"),
        (b"a: &a [*a]", r"alias \*a"),
        (b"a: " + b"[" * 100_000, "more than 32 nested levels|not valid YAML"),
        (b"a: " + b"9" * 100_000, "more than 16384 characters"),
        (b"a: 2020-13-45", "there is no setting|missing"),
        (b"a: " + b":".join([b"9"] * 20), "there is no setting|missing|not valid"),
        (b"- a", "key: value"),
        (b"\xff\xfe", "not valid YAML|key: value"),
        (b"a: b\n" * 300_000, "at most 1048576 are read"),
        (b"!!python/object/apply:os.system [touch owned]", "not valid YAML"),
    ],
)
def test_a_taxonomy_that_bursts_is_refused_at_once(
    tmp_path: Path, content: bytes, said: str
) -> None:
    bundle = copy_bundle(tmp_path)
    forge(bundle, "taxonomy.yaml", content)
    _refused(bundle, said)


def test_a_taxonomy_of_many_wrong_lines_is_refused_at_once(tmp_path: Path) -> None:
    """Errors are counted once, and keys compared once, however many there are."""
    classes = "".join(f"- {{key: a{n}, wing: 1}}\n" for n in range(20_000))
    (tmp_path / "taxonomy.yaml").write_text(f"name: n\ntitle: t\nclasses:\n{classes}")
    with pytest.raises(UserError, match=r"more mistakes|at most 10000"):
        Taxonomy.load(tmp_path / "taxonomy.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": ' + b"[" * 200_000, "too many nested levels"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "more than 32 nested levels"),
        (b'{"format": 1, "format": 2}', "'format' occurs twice"),
        (b'{"temperature": NaN}', "NaN is no number"),
        (b'{"temperature": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "not valid JSON"),
        (b" " * 34_000_000, "at most 33554432 are read"),
    ],
)
def test_an_index_that_bursts_is_refused_at_once(tmp_path: Path, content: bytes, said: str) -> None:
    bundle = copy_bundle(tmp_path)
    (bundle / "bundle.json").write_bytes(content)
    _refused(bundle, said)


def _header(facts: object, data: bytes = b"") -> bytes:
    text = json.dumps(facts).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 50_000_000) + b" " * 1000,
        struct.pack("<Q", 4) + b"[[[[",
        struct.pack("<Q", 2) + b"[]",
        _header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
        _header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"0000"),
        _header({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"0000"),
        _header({"a": {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 4]}}, b"0000"),
        _header({"__metadata__": {"format": 7}}),
        _header({}),
    ],
)
def test_every_malformed_file_of_tensors_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    bundle = copy_bundle(tmp_path)
    for name, load in (
        (WEIGHTS, Bundle.ensemble),
        ("detector/model.safetensors", Bundle.detector),
        ("gallery/pictures.safetensors", Bundle.gallery),
        ("novelty.safetensors", Bundle.novelty),
    ):
        forge(bundle, name, content)
        _refused(bundle, "safetensors|of different networks", load)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: dict(list(state.items())[1:]),
        lambda state: {**state, "another": torch.zeros(2)},
        lambda state: {name: tensor.flatten() for name, tensor in state.items()},
        lambda state: {name: tensor.to(torch.int8) for name, tensor in state.items()},
        lambda state: {name: tensor.to(torch.complex64) for name, tensor in state.items()},
    ],
)
def test_weights_of_other_shapes_types_or_names_are_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    for name, load in ((WEIGHTS, Bundle.ensemble), ("detector/model.safetensors", Bundle.detector)):
        bundle = copy_bundle(tmp_path / name.split("/")[0])
        forge(bundle, name, save(change(load_file(bundle / name))))
        _refused(bundle, "does not have the tensors|of different networks|only float32", load)


def test_what_is_not_listed_is_refused(tmp_path: Path) -> None:
    made: list[Callable[[Path], object]] = [
        lambda path: path.write_text("x"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to("/etc"),
        lambda path: path.symlink_to("gone"),
        lambda path: path.symlink_to("bundle.json"),
    ]
    bundle = copy_bundle(tmp_path)
    for make in made:
        for folder in (bundle, bundle / "members/a"):
            make(folder / "more")
            _refused(bundle, "'(members/a/)?more'")
            (folder / "more").rmdir() if (folder / "more").is_dir() and not (
                folder / "more"
            ).is_symlink() else (folder / "more").unlink()
    assert open_bundle(bundle)


def test_what_file_managers_leave_is_no_part_of_a_bundle(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path)
    digest = open_bundle(bundle).digest
    for folder in (tmp_path, bundle, bundle / "members/a"):
        strew(folder)
    shutil.copy(bundle / "bundle.json", bundle / "__MACOSX/bundle.json")
    assert open_bundle(bundle).digest == digest
    archive = shutil.make_archive(str(tmp_path / "sent"), "zip", tmp_path)
    assert open_bundle(unpack(Path(archive), tmp_path / "received")).digest == digest
    forge(bundle, "Thumbs.db", b"listed by an older version")
    (bundle / "Thumbs.db").unlink()
    assert open_bundle(bundle)
    write_index(bundle, open_bundle(bundle).spec)
    assert open_bundle(bundle).spec.files == open_bundle(WHOLE).spec.files


@pytest.mark.parametrize("name", ["bundle.json", "taxonomy.yaml", WEIGHTS])
def test_a_file_that_is_none_does_not_block(tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(tmp_path)
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    _refused(bundle, "a pipe or a device|is not a bundle")
    (bundle / name).unlink()
    (bundle / name).symlink_to(WHOLE / name)
    _refused(bundle, "is a link|cannot be opened")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "members/../x", "./x", "a//b", "x\0y"]
)
def test_a_listed_name_stays_inside(tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(tmp_path)
    change_index(bundle, ("files", name), "0" * 64)
    _refused(bundle, "points outside the bundle")


def _table(columns: dict[str, Any], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, **options)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a complete table"),
        (b"PAR1" + b"\0" * 40 + b"PAR1", "not a complete table"),
        (_table({"sha256": ["0"]}), "not a complete table"),
        (_table({"sha256": [1], "split": [2]}), "must have the columns"),
        (_table({"sha256": ["0"], "split": ["train"]}, compression="zstd"), "packed by another"),
        (_table({"sha256": ["0" * 9000], "split": ["train"]}), "a text of 9000 bytes"),
    ],
)
def test_a_table_that_bursts_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    bundle = copy_bundle(tmp_path)
    forge(bundle, "seen.parquet", content)
    _refused(bundle, said, Bundle.seen)


def test_a_table_declares_no_more_than_it_may(tmp_path: Path) -> None:
    """Eleven million rows of one value are a file of a few kilobytes."""
    bundle = copy_bundle(tmp_path)
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(11_000_000, np.int8)), ["0" * 64])
    forge(bundle, "seen.parquet", _table({"sha256": many, "split": many}))
    _refused(bundle, "11000000 rows", Bundle.seen)


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("gallery/pictures.safetensors", "offsets", lambda each: each.flip(0)),
        ("gallery/pictures.safetensors", "offsets", lambda each: each[1:]),
        ("gallery/pictures.safetensors", "embeddings", lambda each: each[:1]),
        ("gallery/pictures.safetensors", "embeddings", lambda each: each.float()),
        ("novelty.safetensors", "scores", lambda each: each.flip(0)),
        ("novelty.safetensors", "scores", lambda each: each * torch.nan),
        ("novelty.safetensors", "variances", lambda each: -each),
        ("novelty.safetensors", "axes", lambda each: each[:, 1:]),
        ("novelty.safetensors", "rest", lambda each: each * 0),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, tensor: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    bundle = copy_bundle(tmp_path)
    tensors = load_file(bundle / name)
    forge(bundle, name, save({**tensors, tensor: change(tensors[tensor]).contiguous()}))
    load = Bundle.gallery if name.startswith("gallery") else Bundle.novelty
    _refused(bundle, "do not fit each other|must have|lacks the arrays", load)


def test_embeddings_of_other_networks_are_refused_where_they_are_compared(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path)
    name = "gallery/pictures.safetensors"
    tensors = load_file(bundle / name)
    narrow = tensors["embeddings"][:, 1:].contiguous()
    forge(bundle, name, save({**tensors, "embeddings": narrow}))
    gallery = open_bundle(bundle).gallery()
    assert gallery is not None
    with pytest.raises(UserError, match="embedding index of the bundle has"):
        gallery.nearest(np.zeros(narrow.shape[1] + 1, np.float32), 3)
