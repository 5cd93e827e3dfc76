"""Trained members, loaded and ready to predict and to be packed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.data.loader.batches import learning
from skindx.data.manifest import Record
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.classifier.classifier import build_classifier, check_weights, fitted_network
from skindx.models.combination import Combination
from skindx.models.ensemble import Ensemble, Member, predict_members, share_trunks
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.finished import (
    VALIDATION,
    WEIGHTS,
    FinishedMember,
    State,
    load_member,
    member_folder,
)
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.ensembles.member_refs import Mask, MemberRef, member_refs
from skindx.training.tasks.heads_job import load_trunk

# N = images, C = classes


# P = images of train and val, in manifest order; N = those held out of a training; C = classes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EnsemblePart:
    """One network of the ensemble before it is packed."""

    name: str
    member: MemberSettings
    finished: FinishedMember
    exact: bool
    """Its stored log-probabilities are those that it serves."""


@dataclass(frozen=True)
class EnsembleBuilder:
    """Loads members, predicts and makes the ensemble of them."""

    run: Path
    dataset: Path
    settings: TrainSettings
    taxonomy: Taxonomy
    records: Sequence[Record]
    device: str

    @property
    def images(self) -> list[Record]:
        """The images of train and val."""
        return learning(self.records)

    def parts(self, wanted: Sequence[str]) -> list[EnsemblePart]:
        """Return the networks of these names."""
        trained = member_refs(self.run, self.settings)
        return [self._trained(trained[name]) for name in wanted]

    def predict(self, part: EnsemblePart, held_P: Mask) -> Floats:
        """Return raw log-probabilities N x C of the images it did not train on, as it serves."""
        if part.exact:
            return part.finished.validation_NC
        return self._predict(self._member(part.member, part.finished.state), held_P)

    def spec(self, part: EnsemblePart, temperature: float) -> MemberSpec:
        """Return how the bundle is to rebuild a part."""
        classifier = fitted_network(part.member.network(), part.finished.state)
        views = part.member.views
        return MemberSpec(
            name=part.name,
            classifier=classifier,
            temperature=temperature,
            views=views,
            tower=part.member.tower,
            trunk=_trunk_key(part.member),
        )

    def trunks(self, parts: Sequence[EnsemblePart]) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return the weights that parts share, by their key."""
        frozen = [part.member for part in parts if part.member.trunk == "frozen"]
        return {load_trunk(member).key: load_trunk(member).state for member in frozen}

    def ensemble(
        self,
        members: Sequence[tuple[EnsemblePart, float]],
        temperature: float,
        combination: Combination,
    ) -> Ensemble:
        """Return the ensemble of parts and their temperatures, as its bundle will serve it."""
        ready = tuple(
            replace(self._member(part.member, part.finished.state), temperature=part_temperature)
            for part, part_temperature in members
        )
        share_trunks(ready)
        return Ensemble(ready, temperature, combination)

    def _member(self, settings: MemberSettings, state: State) -> Member:
        network = fitted_network(settings.network(), state)
        classifier = build_classifier(network, len(self.taxonomy.classes))
        classifier.net.load_state_dict(state)
        classifier.to(torch.device(self.device)).eval()
        return Member(
            settings.name,
            classifier,
            settings.preprocess,
            views=settings.views,
            trunk=_trunk_key(settings),
        )

    def _predict(self, member: Member, chosen_P: Mask) -> Floats:
        images = self.images
        chosen = [images[index] for index in np.flatnonzero(chosen_P)]
        log_MNC = predict_members([member], self.dataset, chosen)
        return np.asarray(log_MNC[0])

    def _trained(self, ref: MemberRef) -> EnsemblePart:
        held_P = ref.held_P(self.records)
        finished = self._load(ref.run, ref.member, held_P)
        # Trained in half precision, it was also validated in it; it is served in full.
        exact = ref.member.views == 1 and ref.settings.engine.precision == "fp32"
        # A head on a frozen trunk was validated in all its views, on features in half precision.
        exact = exact or ref.member.trunk == "frozen"
        return EnsemblePart(ref.name, ref.member, finished, exact)

    def _load(self, run: Path, member: MemberSettings, held_P: Mask) -> FinishedMember:
        """Read a member that was validated on the images `held_P`. Raises UserError."""
        finished, folder = load_member(run, member.name), member_folder(run, member.name)
        finished = replace(finished, state=_whole(run, member, finished.state))
        self._check(member, finished.state, folder / WEIGHTS, folder)
        rows, classes = int(held_P.sum()), len(self.taxonomy.classes)
        log_NC, truth_N = finished.validation_NC, finished.truth_N
        if log_NC.shape != (rows, classes) or len(truth_N) != rows or np.isnan(log_NC).any():
            raise UserError(
                f"{folder / VALIDATION} does not hold {member.name}'s predictions for {rows} "
                f"images and {classes} classes; remove {folder} to train it again."
            )
        return finished

    def _check(self, member: MemberSettings, state: State, file: Path, folder: Path) -> None:
        repair = f"remove {folder} to train it again"
        network = fitted_network(member.network(), state)
        check_weights(network, len(self.taxonomy.classes), state, file, repair)


def _trunk_key(member: MemberSettings) -> str:
    return load_trunk(member).key if member.trunk == "frozen" else ""


def _whole(run: Path, member: MemberSettings, state: State) -> State:
    """Return all tensors of a member: of a frozen trunk its folder holds the head alone.

    Raises UserError for a head that was made on the features of another trunk.
    """
    if member.trunk != "frozen":
        return state
    trunk, folder = load_trunk(member), member_folder(run, member.name)
    made_on = read_json(folder / "member.json", finite=False).get("trunk")
    if made_on != trunk.key:
        raise UserError(
            f"the head in {folder} was made on the features of trunk {made_on}, and the weights of "
            f"member {member.name} are trunk {trunk.key}; give the weights that it was made on, or "
            "remove that folder to train it again."
        )
    return {**trunk.state, **state}
