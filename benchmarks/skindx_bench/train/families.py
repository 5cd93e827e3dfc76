"""Check one network of each of timm's families for all that a member must do."""

import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.diagnosis.heat_maps import heat_maps
from skindx.metrics import proportion_interval
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    check_last_map,
    take_gradient,
)
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Ensemble, Member
from skindx.models.exports.runtimes import Runtime, backend_of, load_body, make_body
from skindx.training.tasks.optimizer import layer_depths
from skindx_bench.harness.result import Figure, Result

STAGES = ("build", "step", "layer_decay", "predict", "heat_map", "onnx", "openvino")
_CLASSES = 3
_TOLERANCE = 1e-2
"""Largest difference of a logit from the eager one, relative to the largest logit."""


def run_stages(model: str, size: int) -> Iterator[str]:
    """Yield for each stage "yes", or "no: " and why; after a network that is not built, no more."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = ClassifierSettings(model=model, preprocess=Preprocess(size=size))
    try:
        classifier = build_classifier(settings, _CLASSES)
    except Exception as error:
        yield _no(error)
        yield from ["no: not built"] * (len(STAGES) - 1)
        return
    yield "yes"
    yield _tried(lambda: take_gradient(classifier, size, _CLASSES))
    yield _tried(lambda: layer_depths(classifier))
    yield _tried(lambda: check_last_map(classifier, size, _CLASSES))
    yield _tried(lambda: _heat(classifier, settings))
    for runtime in ("onnx", "openvino"):
        yield _tried(lambda to=runtime: _export(classifier, settings, to))  # type: ignore[misc]


def _tried(stage: Callable[[], object]) -> str:
    try:
        stage()
    except Exception as error:
        return _no(error)
    return "yes"


def _no(error: Exception) -> str:
    return f"no: {' '.join(str(error).split())[:120] or type(error).__name__}"


def _heat(classifier: Classifier, settings: ClassifierSettings) -> None:
    member = Member(settings.model, classifier.eval(), settings.preprocess)
    side = settings.preprocess.size
    photo = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    ensemble = Ensemble((member,))
    maps = ensemble.predict_with_features([photo]).maps
    # With random weights one class' heat may be zero everywhere by chance, not that of each.
    found = [heat_maps(ensemble, maps, [number], [photo])[0] for number in range(_CLASSES)]
    if all(heat is None for heat in found):
        raise ValueError("no heat for any class")


def _export(classifier: Classifier, settings: ClassifierSettings, to: Runtime) -> None:
    side = settings.preprocess.size
    squares = torch.randint(0, 256, (3, side, side, 3), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        file = Path(folder) / f"body{backend_of(to).suffix}"
        make_body(file, classifier.eval(), settings.preprocess, to=to, precision="fp32")
        theirs_BC = classifier.forward_head(load_body(file, to, "fp32")(squares))
        ours_BC = classifier(squares)
    if not (theirs_BC - ours_BC).abs().max() <= _TOLERANCE * ours_BC.abs().max():
        raise ValueError("the export answers otherwise than the network")


MODELS = (
    "beit_base_patch16_224", "cait_xxs24_224", "coat_tiny", "coatnet_pico_rw_224", "convit_tiny",
    "convmixer_768_32", "convnext_atto", "convnextv2_atto", "crossvit_tiny_240", "cs3darknet_s",
    "cspresnet50", "davit_tiny", "deit_tiny_patch16_224", "densenet121", "dla34", "dpn48b",
    "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "efficientnet_b0",
    "efficientvit_b0", "efficientvit_m0", "eva02_tiny_patch14_224", "fastvit_t8", "fasternet_t0",
    "focalnet_tiny_srf", "gcvit_xxtiny", "ghostnet_050", "hgnetv2_b0", "hiera_tiny_224",
    "hrnet_w18_small", "inception_next_atto", "inception_v3", "levit_128s", "mambaout_femto",
    "maxvit_rmlp_pico_rw_256", "mixer_s32_224", "mobilenetv3_small_050", "mobilenetv4_conv_small",
    "mobileone_s0", "mobilevit_xxs", "mvitv2_tiny", "nest_tiny", "nextvit_small", "nfnet_l0",
    "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "regnetx_002", "repghostnet_050", "repvgg_a0",
    "repvit_m0_9", "res2net50_14w_8s", "resmlp_12_224", "resnest14d", "resnet18", "rexnet_100",
    "selecsls42b", "sequencer2d_s", "shvit_s1", "skresnet18", "starnet_s1",
    "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "swiftformer_xs", "tiny_vit_5m_224",
    "tnt_s_legacy_patch16_224", "tresnet_m", "twins_svt_small", "vgg11_bn",
    "visformer_tiny", "vit_tiny_patch16_224", "volo_d1_224", "vovnet39a", "xception41",
    "xcit_nano_12_p16_224",
)  # fmt: skip
"""A small one of each of timm's families."""


SMALLEST = ("models=[test_resnet]", "size=64")


class Config(Settings):
    """Networks with random weights, each in a process of its own with limits."""

    models: tuple[str, ...] = Field(MODELS, min_length=1)
    size: int = Field(96, ge=32, le=1024)
    """Side of the images, pixels."""
    limit_s: float = Field(180, gt=0, le=3600)
    memory_gb: float = Field(12, gt=0)
    """Address space of one process."""


def run(settings: Config) -> Result:
    """Try every stage on every network; a stage gives "yes" or the reason why not."""
    rows = {model: try_apart(model, settings) for model in dict.fromkeys(settings.models)}
    figures = {stage: _share([row[stage] for row in rows.values()]) for stage in STAGES}
    return Result(
        "families",
        figures,
        notes=(
            f"Share of {len(rows)} networks of timm, random weights, {settings.size} pixels, each "
            f"in a process with {settings.limit_s:g} s and {settings.memory_gb:g} GB. Intervals: "
            "exact (Clopper and Pearson), as for networks drawn at random.",
        ),
        models=rows,
        headings=("share", "95 % interval"),
    )


def _share(answers: Sequence[str]) -> Figure:
    n = len(answers)
    share = proportion_interval(answers.count("yes") / n, n)
    return Figure.of(share, "%", n, 100)


def try_apart(model: str, settings: Config) -> Mapping[str, Any]:
    """Return stage -> "yes" or why not; the end of its process or of its time is a reason."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["skindx_bench.train.families"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(model, settings.size, settings.memory_gb, theirs), daemon=True
    )
    process.start()
    theirs.close()
    deadline, row = time.monotonic() + settings.limit_s, dict.fromkeys(STAGES, "not reached")
    for stage in STAGES:
        try:
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                row[stage] = f"no: over {settings.limit_s:g} s"
                break
            row[stage] = ours.recv()
        except EOFError:
            process.join()
            row[stage] = f"no: the process ended with {process.exitcode}"
            break
    process.kill()
    process.join()
    return row


def _work(model: str, size: int, memory_gb: float, answers: Connection) -> None:
    limit = int(memory_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for answer in run_stages(model, size):
        answers.send(answer)
