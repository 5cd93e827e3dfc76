"""Finished members and detector become RUN/bundle."""

from pathlib import Path

import numpy as np

from skindx.data.manifest import MANIFEST, read_manifest, split_of
from skindx.files import sha256_file
from skindx.models.bundle import Bundle, pack
from skindx.models.bundle_spec import MemberSpec
from skindx.models.calibration import apply_temperature, fit_temperature
from skindx.models.classifier import ClassifierSettings
from skindx.models.ensemble import combine, log
from skindx.taxonomy import Taxonomy
from skindx.training.detection.store import packed_parts
from skindx.training.member import load_member
from skindx.training.settings import TrainSettings


def pack_run(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Fit the temperatures on validation, then pack members and detector into RUN/bundle."""
    members, softened = [], []
    for member in settings.members:
        finished = load_member(run, member.name)
        temperature = fit_temperature(finished.validation_NC, finished.truth_N)
        classifier = ClassifierSettings(
            model=member.model, model_args=member.model_args, preprocess=member.preprocess
        )
        spec = MemberSpec(name=member.name, classifier=classifier, temperature=temperature)
        members.append((spec, finished.state))
        softened.append(apply_temperature(finished.validation_NC, temperature))
    mean_NC = log(combine(np.stack(softened), 1.0))
    return pack(
        run / "bundle",
        settings.name,
        taxonomy,
        members,
        temperature=fit_temperature(mean_NC, finished.truth_N),
        detector=packed_parts(run, settings),
        provenance={
            "dataset": dataset.resolve().name,
            "manifest sha256": sha256_file(dataset / MANIFEST),
            "training pictures": len(split_of(read_manifest(dataset), "train")),
        },
    )
