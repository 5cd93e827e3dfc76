"""The public interface: its names, its signatures, what an import costs, unknown keywords."""

import ast
import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Unpack

import pytest

import skindx
from skindx.api import dataset as dataset_module
from skindx.api import model as model_module
from skindx.core.errors import UnknownKeyword
from skindx.diagnosis.case import Patient, PersonFacts

NAMES = [
    *("Answer", "BuildSettings", "Dataset", "EvaluationReport", "JobError", "Model"),
    *("PhotoFeatures", "Refused", "TrainSettings", "UserError", "__version__", "build"),
    *("evaluate", "load", "open_dataset", "train"),
]

SIGNATURES = {
    "load": "path, digest, *, device, backend, miss_rate, prevalence",
    "open_dataset": "path",
    "build": "source, out, *, taxonomy, urgency, sets, resplit, join_copies, cluster, progress",
    "train": "dataset, out, settings, *, weights, sets, progress",
    "evaluate": "bundle, dataset, out, *, split, external, internal, digest, miss_rate, pictures, "
    "progress",
    "Model.diagnose": "self, photos, *, modality, **facts",
    "Model.predict": "self, photos, batch, facts, progress",
    "Model.iter_predictions": "self, photos, batch, facts, progress",
    "Model.logits": "self, photos, batch, progress",
    "Model.embeddings": "self, photos, batch, progress, *, member",
    "Model.iter_features": "self, photos, batch, progress",
    "Model.calibrated": "self, logits",
    "Dataset.torch": "self, split, transform",
    "Dataset.hf": "self, split",
    "Dataset.files": "self, split",
    "Dataset.show": "self, label, split, most",
    "Answer.to_dict": "self",
    "Answer.pdf": "self, patient, when, part",
    "Answer.plot": "self",
}

MEMBERS = {
    "Model": {
        *("calibrated", "classes", "diagnose", "digest", "embeddings", "iter_features"),
        *("iter_predictions", "logits", "networks", "predict", "schema"),
    },
    "Dataset": {"classes", "files", "groups", "hf", "show", "splits", "table", "torch"},
    "Answer": {
        *("abstained", "advice", "conformal_set", "diagnosis", "heat_maps", "metrics", "pdf"),
        *("plot", "probabilities", "to_dict", "urgency"),
    },
    "EvaluationReport": {
        *("auroc", "balanced_accuracy", "classes", "evaluation_digest", "figures", "log_loss"),
        *("metrics", "not_useful", "served", "top1"),
    },
}


def shape(function: object) -> str:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    names, starred = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            names.append("*")
            starred = True
        names.append(f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name)
    return ", ".join(names)


def test_names_and_signatures_stay() -> None:
    """What stands here is promised: a name may be added, none changes its meaning or goes."""
    assert sorted(skindx.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(skindx))
    for name, signature in SIGNATURES.items():
        home: object = skindx
        for part in name.split("."):
            home = getattr(home, part)
        assert shape(home) == signature, name
    for name, members in MEMBERS.items():
        assert {one for one in vars(getattr(skindx, name)) if one[0] != "_"} == members
    with pytest.raises(AttributeError, match="no attribute 'lode'; it has"):
        _ = skindx.lode


def test_the_types_name_what_the_module_gives() -> None:
    stub = ast.parse(Path(skindx.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted([*homes, "__version__"]) == sorted(skindx.__all__)
    assert homes == {name: home for home, names in skindx._HOMES.items() for name in names}


def test_an_import_is_quick_and_loads_no_torch() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import skindx; "
        "took = time.perf_counter() - began; "
        "assert not {'torch', 'numpy', 'pyarrow', 'pydantic'} & set(sys.modules); "
        "assert skindx.UserError and 'torch' not in sys.modules; print(took)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 0.2


def test_an_unknown_keyword_is_one_sentence() -> None:
    with pytest.raises(UnknownKeyword, match=r"^load has no keyword 'diges'; did you mean 'dig"):
        skindx.load("bundle", diges="ab")
    with pytest.raises(TypeError, match=r"^evaluate has no keyword 'on'; Valid: bundle, dataset"):
        skindx.evaluate("bundle", "data", on="test")
    with pytest.raises(UnknownKeyword, match=r"^torch has no keyword 'transforms'; did you mean"):
        skindx.Dataset.torch(None, transforms=None)
    with pytest.raises(skindx.UserError, match="no-such"):
        skindx.load("no-such")


def test_editors_know_the_facts_that_are_taken() -> None:
    hint = inspect.signature(skindx.Model.diagnose).parameters["facts"].annotation
    assert hint == Unpack[PersonFacts]
    assert set(PersonFacts.__annotations__) == set(Patient.model_fields) - {"from_file"}
    for name in re.findall(r"skindx\.(\w+)\(", str(skindx.__doc__)):
        assert name in skindx.__all__


def test_wrong_ways_to_load_and_to_name_a_photo_say_what_to_do(tmp_path: Path) -> None:
    bundle = Path(__file__).parents[1] / "fixtures" / "v0_2" / "whole" / "bundle"
    for path, options, said in (
        (bundle, {"backend": "tensorrt"}, "no backend 'tensorrt'; choose one of auto, eager, onnx"),
        (bundle / "bundle.json", {}, f"give {bundle}."),
        (bundle.parent, {}, f"give {bundle}."),
    ):
        with pytest.raises(skindx.UserError, match=re.escape(said)):
            skindx.load(path, **options)  # type: ignore[arg-type]
    with pytest.raises(skindx.UserError, match="does not exist; download it first"):
        skindx.load(bundle).diagnose("https://example.org/photo.jpg")


def test_the_examples_of_the_docstrings_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one writes a picture
    older = Path(__file__).parents[1] / "fixtures" / "v0_2"
    bundle, dataset = older / "whole" / "bundle", older / "dataset"
    data = skindx.open_dataset(dataset)
    names = {
        **{"skindx": skindx, "bundle": bundle, "dataset": dataset, "data": data},
        **{"model": skindx.load(bundle), "photos": data.files("test")},
    }
    for module in (dataset_module, model_module):
        ran = doctest.testmod(module, extraglobs=names, raise_on_error=False)
        assert ran.failed == 0
        assert ran.attempted >= 5
