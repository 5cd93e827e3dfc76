"""Faults that once lived through all tests, planted again: `python tests/mutants.py [NAME …]`.

Each is a line of the package that is changed in a copy of the checkout, where the tests are run
that should fail. Says of each whether it was killed; ends with 1 where one survived. Run by hand
after changes of these places or their tests, not in CI: most of these tests start ranks.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "skindx",
    "methods",
    "benchmarks",
    "conftest.py",
    "tests",
    "data",
    "pyproject.toml",
    "docs",
    "README.md",
)
TIMEOUT_S = 900


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that kill it."""

    file: str
    line: str
    instead: str
    tests: str
    """Arguments of pytest."""


MUTANTS = {
    "names: signs of Hindi and Thai part words": Mutant(
        "skindx/core/text.py",
        'return kind[0] in "LM" or kind in',
        'return kind[0] in "L" or kind in',
        "tests/data/test_label.py",
    ),
    "names: the dot of an i makes another class": Mutant(
        "skindx/core/text.py",
        '_DOTS.sub("i", unicodedata.normalize("NFKC", small))',
        'unicodedata.normalize("NFKC", small)',
        "tests/data/test_label.py",
    ),
    "groups: a placeholder is a patient": Mutant(
        "skindx/data/splits/groups.py",
        "        return is_placeholder(plain)",
        "        return False",
        "tests/data/test_placeholders.py",
    ),
    "groups: zeros are never an id": Mutant(
        "skindx/data/splits/groups.py",
        "return (source, len(plain)) not in self._counted",
        "return True",
        "tests/data/test_placeholders.py",
    ),
    "groups: ids that fold alike are strangers": Mutant(
        "skindx/data/splits/groups.py",
        "{key: folded_name(key) for key in named}",
        "{key: key for key in named}",
        "tests/data/test_placeholders.py",
    ),
    "groups: the first copy alone brings its keys": Mutant(
        "skindx/data/splits/groups.py",
        "{key for image in same for key",
        "{key for image in same[:1] for key",
        "tests/data/test_groups.py",
    ),
    "groups: a source is another on each host": Mutant(
        "skindx/data/splits/groups.py",
        "row.source.partition(FROM)[0]",
        "row.source",
        "tests/data/test_groups.py",
    ),
    "groups: zeros of a table are one patient": Mutant(
        "skindx/data/splits/groups.py",
        "(not is_zero(group) or len(group) in counts)",
        "True",
        "tests/data/test_placeholders.py",
    ),
    "groups: half a class is most of it": Mutant(
        "skindx/data/splits/groups.py",
        "2 * count > of_class[label]",
        "2 * count >= of_class[label]",
        "tests/data/test_copy_groups.py",
    ),
    "groups: half a class was most of it before": Mutant(
        "skindx/data/splits/groups.py",
        ">= 2 * largest_before[label]",
        "> 2 * largest_before[label]",
        "tests/data/test_copy_groups.py",
    ),
    "groups: an id that bears half of the images is passed over": Mutant(
        "skindx/data/placeholders.py",
        "or 2 * images > total",
        "or 2 * images > 9 * total",
        "tests/data/test_placeholders.py",
    ),
    "labels: nan is a class": Mutant(
        "skindx/data/labels.py",
        "    return not is_no_label(label) or",
        "    return True or",
        "tests/data/test_placeholders.py",
    ),
    "DICOM: ANONYMOUS is a patient": Mutant(
        "skindx/data/sources/dicom.py",
        'patient = "" if is_nobody(patient) else patient',
        "patient = patient",
        "tests/data/test_dicom_source.py",
    ),
    "tables: cells beyond the header are dropped": Mutant(
        "skindx/data/tables/reader.py",
        "if len(cells) == width:",
        "if len(cells) >= width:",
        "tests/data/test_table_reader.py",
    ),
    "tables: of two columns of a name one counts": Mutant(
        "skindx/data/tables/reader.py",
        "if known.count(name) > 1 and not self.lists:",
        "if False:",
        "tests/data/test_table_reader.py",
    ),
    "YAML: a number where text is due": Mutant(
        "skindx/core/settings_base.py",
        "_as_text(value) if key in texts else _as_plain",
        "_as_plain",
        "tests/core/test_config.py",
    ),
    "YAML: a number that keeps how it was written": Mutant(
        "skindx/core/settings_base.py",
        "_as_plain(value) if key in untyped else value",
        "value",
        "tests/core/test_config.py",
    ),
    "YAML: NO is false": Mutant(
        "skindx/core/untrusted.py",
        '("bool", "true|True|TRUE|false|False|FALSE", "tTfF")',
        '("bool", "true|false|NO|no|on", "tfNno")',
        "tests/core/test_config.py",
    ),
    "YAML: keys are what YAML takes them for": Mutant(
        "skindx/core/untrusted.py",
        'key.tag = f"{_TAG}str"',
        "pass",
        "tests/core/test_config.py",
    ),
    "boxes: a name that is another image is passed over": Mutant(
        "skindx/data/boxes/image_names.py",
        "elif not entry.image.sha256 and index.contradict(claim, entry):",
        "elif False:",
        "tests/data/test_box_matching.py",
    ),
    "boxes: a renamed VOC file counts among those named as their images": Mutant(
        "skindx/data/boxes/voc.py",
        "if other and 2 * len(other) < len(read.entries):",
        "if False:",
        "tests/data/test_box_matching.py",
    ),
    "boxes: case does not count where two images differ in it": Mutant(
        "skindx/data/boxes/image_names.py",
        "return self.nearness, self.exact",
        "return self.nearness, True",
        "tests/data/test_box_matching.py",
    ),
    "splits: train no longer gets the largest group": Mutant(
        "skindx/data/splits/split.py",
        'assign(free[-1] if split == "train" else free[0], split)',
        "assign(free[0], split)",
        "tests/data/test_split.py",
    ),
    "splits: the rarest class does not choose first": Mutant(
        "skindx/data/splits/split.py",
        "for label in sorted(by_class, key=lambda label: (len(by_class[label]), label)):",
        "for label in sorted(by_class):",
        "tests/data/test_split.py",
    ),
    "splits: small groups before large ones": Mutant(
        "skindx/data/splits/split.py",
        "    for group in reversed(groups):",
        "    for group in groups:",
        "tests/data/test_split.py",
    ),
    "splits: images of a class do not count where a group goes": Mutant(
        "skindx/data/splits/split.py",
        "sum(n * missing[label, split] for",
        "sum(missing[label, split] for",
        "tests/data/test_split.py",
    ),
    "folds: small groups before large ones": Mutant(
        "skindx/data/splits/split.py",
        "key=lambda g: (-content[g].total(), shuffle_key(seed, g))",
        "key=lambda g: shuffle_key(seed, g)",
        "tests/data/test_folds.py",
    ),
    "freeze: of several folds any": Mutant(
        "skindx/data/splits/freeze.py",
        "key=lambda place: (SPLITS.index(place.split), _fold(place))",
        "key=lambda place: SPLITS.index(place.split)",
        "tests/data/test_freeze.py",
    ),
    "freeze: folds of a build of fewer stay": Mutant(
        "skindx/data/splits/freeze.py",
        "(len(used) == folds and max(used) < folds)",
        "max(used, default=0) < folds",
        "tests/data/test_freeze.py",
    ),
    "freeze: a group's name before its image": Mutant(
        "skindx/data/splits/freeze.py",
        "    return groups | images",
        "    return images | groups",
        "tests/data/test_freeze.py",
    ),
    "freeze: an image speaks for the group that left it": Mutant(
        "skindx/data/splits/freeze.py",
        "counts = name in now and now[name].split == place.split",
        "counts = name in now",
        "tests/data/test_freeze.py",
    ),
    "freeze: a build without folds forgets them": Mutant(
        "skindx/data/splits/freeze.py",
        " and now.fold is not None:",
        ":",
        "tests/data/test_freeze.py",
    ),
    "freeze: the first copy alone brings its names": Mutant(
        "skindx/data/splits/freeze.py",
        "*(key for image in same for key",
        "*(key for image in same[:1] for key",
        "tests/data/test_freeze.py",
    ),
    "freeze: the last line of a group decides": Mutant(
        "skindx/data/splits/freeze.py",
        "nearest((groups.get(group, place), place))",
        "place",
        "tests/data/test_freeze.py",
    ),
    "freeze: folds with a gap stay": Mutant(
        "skindx/data/splits/freeze.py",
        "max(used) < folds)",
        "max(used) <= folds)",
        "tests/data/test_freeze.py",
    ),
    "freeze: large letters are another image": Mutant(
        "skindx/data/splits/freeze.py",
        '"").strip().lower(), group',
        '"").strip(), group',
        "tests/data/test_freeze.py",
    ),
    "freeze: what test has, every split has": Mutant(
        "skindx/data/splits/freeze.py",
        "if settings.share[one] and not present[one]]",
        'if settings.share[one] and not present["test"]]',
        "tests/data/test_freeze.py",
    ),
    "labels: one word is compared by its stem": Mutant(
        "skindx/taxonomy/lexicon.py",
        "if len(key - {_BOTH}) > 1))",
        "if key - {_BOTH}))",
        "tests/taxonomy/test_matching.py",
    ),
    "labels: two names are the words of both": Mutant(
        "skindx/taxonomy/lexicon.py",
        '(_AND.sub(f" {_BOTH} ", label))',
        '(_AND.sub(" ", label))',
        "tests/taxonomy/test_matching.py",
    ),
    "labels: a class that names no condition is passed on": Mutant(
        "skindx/taxonomy/label_matches.py",
        "    if _is_nameless(skin_class):",
        "    if False:",
        "tests/taxonomy/test_matching.py",
    ),
    "labels: signs between two names do not count": Mutant(
        "skindx/taxonomy/lexicon.py",
        "    return _SIGN.search(label) is None",
        "    return True",
        "tests/taxonomy/test_matching.py",
    ),
    "K-FAC: the floor by the other factor": Mutant(
        "methods/skindx_methods/kfac/eigen.py",
        "_counted(v_a * top_g > floor)",
        "_counted(v_a * top_a > floor)",
        "methods/tests/test_kfac_prepared.py",
    ),
    "K-FAC: the floor of the outputs by the other factor": Mutant(
        "methods/skindx_methods/kfac/eigen.py",
        "_counted(v_g * top_a > floor)",
        "_counted(v_g * top_g > floor)",
        "methods/tests/test_kfac_prepared.py",
    ),
    "K-FAC: batch norms by one factor alone": Mutant(
        "methods/skindx_methods/kfac/eigen.py",
        "values = outside.values_SW * values",
        "values = outside.values_SW * torch.ones_like(values)",
        "methods/tests/test_kfac_prepared.py methods/tests/test_kfac.py",
    ),
    "ZeRO 3: the last gradient of a layer that a step does not reach": Mutant(
        "skindx/training/deepspeed/engine.py",
        "if self.mesh.settings.zero == 3:\n            self._engine.optimizer.grad",
        "if self.mesh.settings.zero == 9:\n            self._engine.optimizer.grad",
        "tests/training/test_engine_modes.py -k does_not_reach",
    ),
    "hierarchical: nodes of unequal ranks": Mutant(
        "skindx/comm/hierarchical.py",
        "if ranks % wanted:",
        "if wanted > ranks:",
        "tests/training/test_refused_settings.py -k that_are_started",
    ),
    "launching: the launcher's ranks are not those of the settings": Mutant(
        "skindx/training/checks.py",
        "engine.ranks not in (here, everywhere)",
        "engine.ranks > here",
        "tests/training/test_refused_settings.py -k that_are_started",
    ),
    "local steps: heavy ball for Nesterov": Mutant(
        "methods/skindx_methods/local_steps/local_steps.py",
        "update_M = update_M.add_(self._velocity_M, alpha=momentum)",
        "update_M = self._velocity_M",
        "methods/tests/test_local_steps.py -k nesterov",
    ),
    "local steps: an outer rate of 1": Mutant(
        "methods/skindx_methods/local_steps/local_steps.py",
        "self._anchor_M.sub_(update_M, alpha=self.settings.outer_rate)",
        "self._anchor_M.sub_(update_M)",
        "methods/tests/test_local_steps.py -k nesterov",
    ),
    "local steps: steps since a message that is taken back": Mutant(
        "methods/skindx_methods/local_steps/local_steps.py",
        "self.taken + sent.steps, self._rounds - 1",
        "sent.steps, self._rounds - 1",
        "methods/tests/test_local_steps.py -k lost_group",
    ),
    "sparse exchanges: one element less": Mutant(
        "skindx/comm/sparse_exchange.py",
        "math.ceil(self.density",
        "int(self.density",
        "tests/comm/test_residuals.py",
    ),
    "PowerSGD: each step starts cold": Mutant(
        "skindx/comm/powersgd_exchange.py",
        "        self._right = right\n",
        "",
        "tests/comm/test_residuals.py",
    ),
    "PowerSGD: no orthogonal basis": Mutant(
        "skindx/comm/powersgd_exchange.py",
        "[_orthogonal(each_NR) for each_NR in left]",
        "list(left)",
        "tests/comm/test_residuals.py",
    ),
    "PowerSGD: matrices that gain nothing": Mutant(
        "skindx/comm/powersgd_exchange.py",
        "if thin < parameter.numel()",
        "if thin <= parameter.numel()",
        "tests/comm/test_residuals.py",
    ),
    "PowerSGD: ranks draw other matrices": Mutant(
        "skindx/comm/powersgd_exchange.py",
        ", generator=generator)",
        ")",
        "tests/comm/test_residuals.py",
    ),
    "checkpoints: a cut-off rank removes those of the others": Mutant(
        "skindx/training/checkpoint/keeper.py",
        "if number:  # the ranks",
        "if False:  # the ranks",
        "tests/training/test_checkpoint.py -k cut_off",
    ),
    "resume: the main rank has its own loss of an epoch alone": Mutant(
        "skindx/training/checkpoint/resume.py",
        "sum(sums) if self._mesh.is_main else 0.0",
        "sums[0] if self._mesh.is_main else 0.0",
        "tests/training/test_checkpoint.py -k loss_of_an_epoch",
    ),
    "elastic: any data fits": Mutant(
        "methods/skindx_methods/elastic/elastic_run.py",
        '"data": sha256_file(dataset / MANIFEST)',
        '"data": sha256().hexdigest()',
        "methods/tests/test_elastic_ranks.py -k alike_in_code",
    ),
    "elastic: the loss of an epoch without that of lost ranks": Mutant(
        "methods/skindx_methods/elastic/handover.py",
        "sum(sums) * before / len(givers) / mesh.data.size",
        "sum(sums) / mesh.data.size",
        "methods/tests/test_elastic_ranks.py -k handed_over",
    ),
    "hopping: the smallest remainder gets a step": Mutant(
        "methods/skindx_methods/hopping/partition_images.py",
        "steps_P[np.argmin(over)] += 1",
        "steps_P[np.argmax(over)] += 1",
        "methods/tests/test_hopping.py -k remainders",
    ),
    "optimizers: SGD without Nesterov": Mutant(
        "skindx/training/tasks/optimizer.py",
        '"nesterov": recipe.momentum > 0}',
        '"nesterov": False}',
        "tests/training/test_optimizer.py -k reference",
    ),
    "optimizers: a preconditioned gradient without dampening": Mutant(
        "skindx/training/tasks/optimizer.py",
        '"dampening": 0.1',
        '"dampening": 0.0',
        "tests/training/test_optimizer.py -k reference",
    ),
    "engine: one rate for all groups": Mutant(
        "skindx/training/deepspeed/engine.py",
        'learning_rate * group.get("lr_scale", 1.0)',
        "learning_rate",
        "tests/training/test_engine_modes.py -k plain_process",
    ),
    "history: skipped images count in the mean loss": Mutant(
        "skindx/training/position.py",
        "shown = images - self.skipped_pictures",
        "shown = images",
        "tests/training/test_step_guard.py",
    ),
    "history: skipped images of all epochs": Mutant(
        "skindx/training/position.py",
        "self.agreed, self.skipped, self.skipped_pictures = False, 0, 0",
        "self.agreed = False",
        "tests/training/test_step_guard.py",
    ),
    "a good step does not end a bad run": Mutant(
        "skindx/training/position.py",
        "        position.loss_sum += loss\n        position.bad_run = 0",
        "        position.loss_sum += loss",
        "tests/training/test_step_guard.py",
    ),
    "mixtures: all shards draw alike": Mutant(
        "skindx/training/tasks/mixing.py",
        "[shares[rank]], 0, (*seeds, rank)",
        "[shares[rank]], 0, seeds",
        "tests/training/test_mixing.py",
    ),
    "losses: weights of classes without the root": Mutant(
        "skindx/training/config/recipe.py",
        '"sqrt": 0.5',
        '"sqrt": 1.0',
        "tests/training/test_losses.py",
    ),
    "losses: adjusted logits without weights of classes": Mutant(
        "skindx/training/tasks/losses.py",
        "return LogitAdjustedLoss(weights_C,",
        "return LogitAdjustedLoss(torch.ones_like(weights_C),",
        "tests/training/test_losses.py",
    ),
    "losses: labels are drawn without the shift": Mutant(
        "skindx/training/tasks/losses.py",
        "(logits_BC.float() + shift_C, dim=1)",
        "(logits_BC.float(), dim=1)",
        "methods/tests/test_kfac.py -k own_output",
    ),
    "mixtures: the square of a share as its side": Mutant(
        "skindx/training/tasks/mixing.py",
        "np.sqrt(1 - cut_keep)",
        "(1 - cut_keep)",
        "tests/training/test_mixing.py",
    ),
    "mixtures: CutMix takes the share of Mixup": Mutant(
        "skindx/training/tasks/mixing.py",
        "< _cut_share(mix)",
        "> _cut_share(mix)",
        "tests/training/test_mixing.py",
    ),
    "mixtures: a pair is cut and blended": Mutant(
        "skindx/training/tasks/mixing.py",
        "np.where(mixed & ~cut, up_keep, 1.0)",
        "np.where(mixed, up_keep, 1.0)",
        "tests/training/test_mixing.py",
    ),
    "mixtures: CutMix draws with the exponent of Mixup": Mutant(
        "skindx/training/tasks/mixing.py",
        "rng.beta(mix.cutmix, mix.cutmix, pairs)",
        "rng.beta(mix.mixup, mix.mixup, pairs)",
        "tests/training/test_mixing.py",
    ),
    "average: its warm-up lags by a step": Mutant(
        "skindx/training/loop.py",
        "average.update(network, step + 1)",
        "average.update(network, step)",
        "tests/training/test_ema.py",
    ),
    "ranks apart: skipped steps of one count as those of all": Mutant(
        "methods/skindx_methods/local_steps/round_guard.py",
        "            self.skipped += 1\n",
        "            position = training.position\n            position.skipped += 1\n",
        "methods/tests/test_round_guard.py",
    ),
    "ranks apart: the average waits for no round": Mutant(
        "methods/skindx_methods/local_steps/round_guard.py",
        "        return _exchange(engine).agreed\n",
        "        return int(taken)\n",
        "methods/tests/test_round_guard.py",
    ),
    "ranks apart: a checkpoint without each rank's moments": Mutant(
        "methods/skindx_methods/local_steps/round_guard.py",
        'return {"moments": Moments(engine.optimizer, engine.module, mesh.rank, mesh.size)}',
        "return {}",
        "methods/tests/test_round_guard.py",
    ),
    "loop: a branch for ranks that train apart": Mutant(
        "skindx/training/loop.py",
        "return loss_sum if taken else None",
        'return loss_sum if taken or getattr(engine, "apart", False) else None',
        "tests/training/test_methods.py",
    ),
    "checkpoints: any rank says that one is due": Mutant(
        "skindx/training/position.py",
        "        due = self.mesh.is_main and self.due()\n        flags",
        "        due = self.due()\n        flags",
        "tests/training/test_step_guard.py",
    ),
    "loop: the rate of the next step": Mutant(
        "skindx/training/loop.py",
        "steps_of(task.images, task.batch) + position.step\n            taken",
        "steps_of(task.images, task.batch) + position.step + 1\n            taken",
        "tests/training/test_loop.py",
    ),
    "loop: all ranks draw alike": Mutant(
        "skindx/training/loop.py",
        "position.step, rank))",
        "position.step, 0))",
        "tests/training/test_loop.py",
    ),
    "loop: statistics of a step that was not taken stay": Mutant(
        "skindx/training/loop.py",
        "        if not taken:\n",
        "        if False:\n",
        "tests/training/test_loop.py",
    ),
    "loop: the loss of the last piece alone": Mutant(
        "skindx/training/loop.py",
        "        total += value",
        "        total = value",
        "tests/training/test_loop.py",
    ),
    "loop: later epochs train as if they were judged": Mutant(
        "skindx/training/loop.py",
        "    training.engine.train()\n    take = ",
        "    take = ",
        "tests/training/test_loop.py",
    ),
    "loop: each piece ends the step": Mutant(
        "skindx/training/loop.py",
        "last=number == len(pieces))",
        "last=True)",
        "tests/training/test_loop.py",
    ),
    "history: the loss of one rank": Mutant(
        "skindx/training/loop.py",
        "float(sum(training.mesh.gather(position.loss_sum)))",
        "float(training.mesh.gather(position.loss_sum)[0])",
        "tests/training/test_loop.py",
    ),
    "ensembles: images of a patient are patients": Mutant(
        "skindx/training/ensembles/ready_ensemble.py",
        "np.array(evidence.groups)",
        "np.arange(len(right_N))",
        "tests/training/test_combiners.py",
    ),
    "ensembles: the temperature of the mean is dropped": Mutant(
        "skindx/training/ensembles/ready_ensemble.py",
        "combine(soft_UNC, self.temperature, self.combination)",
        "combine(soft_UNC, 1.0, self.combination)",
        "tests/training/test_combiners.py",
    ),
    "ensembles: units change their temperatures": Mutant(
        "skindx/training/ensembles/ready_ensemble.py",
        "fitted.temperatures, strict=True)\n        for",
        "sorted(fitted.temperatures), strict=True)\n        for",
        "tests/training/test_combiners.py",
    ),
    "crops: images that are decoded too small": Mutant(
        "skindx/data/loader/crops.py",
        "math.ceil(rows / self.height), math.ceil(columns",
        "round(rows / self.height), round(columns",
        "tests/data/test_crop.py",
    ),
    "changes: sharpening is left out where images are changed at once": Mutant(
        "skindx/data/loader/settings.py",
        "self.blur, self.sharpen, self.holes)",
        "self.blur, self.holes)",
        "tests/training/test_images.py -k change",
    ),
    "changes: one image of five is coloured": Mutant(
        "skindx/data/loader/augment.py",
        "_COLOURED = 0.8",
        "_COLOURED = 0.2",
        "tests/training/test_images.py -k seed",
    ),
    "statistics: those of before stay in the mean": Mutant(
        "methods/skindx_methods/local_steps/round_guard.py",
        "norm.reset_running_stats()",
        "norm.eval()",
        "methods/tests/test_norm_statistics.py",
    ),
    "elastic: a card that no rank has signed": Mutant(
        "methods/skindx_methods/elastic/run_secret.py",
        "if not hmac.compare_digest(code, self._code(name, text).encode()):",
        "if not code:",
        "methods/tests/test_membership.py -k stranger",
    ),
    "elastic: a group without the secret": Mutant(
        "methods/skindx_methods/elastic/run_secret.py",
        "if not hmac.compare_digest(str(proof).encode(), right.encode()):",
        "if not right:",
        "methods/tests/test_membership.py -k without_the_secret",
    ),
    "messages: bytes that no head names": Mutant(
        "skindx/training/parallel/messages.py",
        "if self._at != len(self._message):",
        "if False:",
        "tests/training/test_gathering.py -k no_message",
    ),
    "OOD check: settings name other detectors": Mutant(
        "skindx/models/ood/stored_check.py",
        "OodPart.fit(self._detectors, images)",
        "OodPart.fit(DEFAULT, images)",
        "tests/models/test_added_detector.py -k fitted_with",
    ),
    "OOD check: a detector of others that raises": Mutant(
        "skindx/models/ood/ood_check.py",
        "fit = _fit_added if one.kind in DETECTORS.added else _fit",
        "fit = _fit",
        "tests/models/test_added_detector.py -k one_sentence",
    ),
    "factored exchange: processors that round otherwise": Mutant(
        "methods/skindx_methods/factored/factored_exchange.py",
        "return bool((every_P2 == every_P2[0]).all())",
        "return True",
        "methods/tests/test_factored.py",
    ),
    "secrets: a host may have any once it has one": Mutant(
        "skindx/core/secret_hosts.py",
        "if what == name and where.lower()",
        "if where.lower()",
        "tests/data/test_secret_hosts.py tests/data/test_dicom_source.py -k secret",
    ),
    "secrets: what follows a variable that names its host": Mutant(
        "skindx/core/secret_hosts.py",
        "names[_names_its_host(value) :]",
        "([] if _names_its_host(value) else names)",
        "tests/data/test_secret_hosts.py",
    ),
    "secrets: a secret of DICOMweb needs no word": Mutant(
        "skindx/data/sources/dicomweb.py",
        '        check_secret(name, self.host, "the recipe")\n',
        "",
        "tests/data/test_dicom_source.py -k server_alone",
    ),
    "secrets: a tracker gets settings": Mutant(
        "skindx/training/config/run.py",
        "check_sent(plain, [host for host in hosts if host], origin)",
        "check_sent(plain, [], origin)",
        "tests/data/test_secret_hosts.py -k tracker",
    ),
    "DICOMweb: a search without an end": Mutant(
        "skindx/data/sources/dicomweb.py",
        "for _ in range(self._server.max_pages):",
        "for _ in range(400):",
        "tests/data/test_dicom_source.py -k never_ends",
    ),
    "damaged files: a zip that ends early": Mutant(
        "skindx/models/bundle/detach.py",
        '            raise\n        detail = " ".join(str(error).split())[:120]\n        advice',
        "            raise\n        raise\n        advice",
        "tests/test_damaged_files.py -k zip",
    ),
    "damaged files: numbers of a manifest that are none": Mutant(
        "skindx/data/typed_rows.py",
        "if pc.all(pc.is_finite(column)).as_py() is False:",
        "if len(column) < 0:",
        "tests/test_damaged_files.py -k manifest_that",
    ),
    "passwords: one with @: in it": Mutant(
        "skindx/workers/lease_queue.py",
        "    except ValueError:  # it repeats a part",
        "    except ZeroDivisionError:  # it repeats a part",
        "tests/casebook/test_casebook.py -k untold",
    ),
    "requests: a body that is compressed": Mutant(
        "skindx/ui/http/request_limits.py",
        'set(codings.split(",")) - {"", "identity"}',
        'set(codings.split(",")) - {"", "identity", "gzip"}',
        "tests/ui/test_uploading.py -k compressed",
    ),
    "review: a request that is compressed": Mutant(
        "skindx/ui/review/__init__.py",
        "elif is_encoded(scope):",
        "elif False:",
        "tests/ui/test_review_page.py -k compressed",
    ),
    "patterns of users: letters by the idea of RE2": Mutant(
        "skindx/data/name_patterns.py",
        r'r"\p{L}\p{N}_"',
        'r"0-9A-Za-z_"',
        "tests/data/test_name_patterns.py",
    ),
    "patterns of users: either case by the idea of RE2": Mutant(
        "skindx/data/name_patterns.py",
        "if tree.state.flags & ~re.UNICODE:",
        "if tree.state.flags & re.VERBOSE:",
        "tests/data/test_name_patterns.py",
    ),
    "patterns of users: many slow names have no limit": Mutant(
        "skindx/data/name_patterns.py",
        "if time.monotonic() > ends:",
        "if time.monotonic() < 0:",
        "tests/data/test_name_patterns.py",
    ),
    "diagnose: a photo of a program has no limit of time": Mutant(
        "skindx/diagnosis/photo_checks.py",
        'if apart and form != "HEIC"',
        'if apart and form == "HEIC"',
        "tests/diagnosis/test_opening.py",
    ),
    "datasets: an image has no limit of time": Mutant(
        "skindx/data/manifest.py",
        "return decode_limited(file",
        "from skindx.imaging.decode import decode; return decode(file",
        "tests/imaging/test_limited_decoding.py",
    ),
    "masks: one has no limit of time": Mutant(
        "skindx/data/boxes/box_formats.py",
        "grey_HW = decode_limited(data).max(2)",
        "from skindx.imaging.decode import decode; grey_HW = decode(data).max(2)",
        "tests/imaging/test_limited_decoding.py",
    ),
    "datasets: an answer that came too late is taken for another image": Mutant(
        "skindx/workers/sandbox.py",
        "except BaseException:  # an answer that comes later would be taken for another file's",
        "except ZeroDivisionError:",
        "tests/imaging/test_limited_decoding.py",
    ),
    "audit: an image of several processes has no limit of time": Mutant(
        "skindx/review/privacy_audit.py",
        "limit_time(_LIMIT_S)",
        "limit_time(0)",
        "tests/review/test_audit.py -k too_long",
    ),
    "build: an image that crashed its decoder is tried again": Mutant(
        "skindx/workers/sandbox.py",
        "(suspect and -code in _BY_ITSELF)",
        "(code == -signal.SIGALRM and suspect)",
        "tests/workers/test_sandbox.py::test_an_image_that_kills_its_decoder_is_tried_once_more_only_if_another_may_have",
    ),
    "workers: a photo that kept one for too long is tried again": Mutant(
        "skindx/workers/worker_pool.py",
        "if request.tries >= _TRIES or by_itself:",
        "if request.tries >= _TRIES:",
        "tests/workers/test_worker_pool.py",
    ),
    "workers: a photo that ended one is forgotten": Mutant(
        "skindx/workers/worker_pool.py",
        "self._fatal[self._digest(request.question)] = request.size_bytes",
        "pass",
        "tests/workers/test_worker_pool.py",
    ),
    "children: a grandchild imports from the current folder": Mutant(
        "skindx/core/machine.py",
        'return environment | {_VARIABLE: "1"}',
        "return environment",
        "tests/cli/test_current_folder.py::test_no_child_of_a_program_imports_from_its_folder",
    ),
    "children: one of multiprocessing imports from the current folder": Mutant(
        "skindx/core/machine.py",
        'before = os.environ.get(_VARIABLE)\n    os.environ[_VARIABLE] = "1"',
        "before = os.environ.get(_VARIABLE)",
        "tests/cli/test_current_folder.py::test_no_child_of_a_program_imports_from_its_folder",
    ),
    "JPEG: a run of fill bytes is read anew from each of them, for its cost": Mutant(
        "skindx/imaging/decode_cost.py",
        r"""rb"\xff([^\x00\x01""",
        r"""rb"\xff+([^\x00\x01""",
        "tests/imaging/test_linear_scans.py",
    ),
    "JPEG: a run of fill bytes is read anew from each of them, to make it plain": Mutant(
        "skindx/imaging/image_formats.py",
        r"""_MARKER_IN_SCAN = re.compile(rb"\xff(""",
        r"""_MARKER_IN_SCAN = re.compile(rb"\xff+(""",
        "tests/imaging/test_linear_scans.py",
    ),
    "JPEG: a run of fill bytes is read anew from each of them, to publish it": Mutant(
        "skindx/data/publish/clean_images.py",
        r'''rb"\xff[^\xff]"''',
        r'''rb"\xff+[^\xff]"''',
        "tests/imaging/test_linear_scans.py",
    ),
    "copies: the overlap by a map that is not transposed": Mutant(
        "skindx/data/copies/overlap.py",
        "np.linalg.inv(linear_22).T",
        "np.linalg.inv(linear_22)",
        "tests/data/copies/test_copies_overlap.py",
    ),
    "copies: the first of equal images for the best": Mutant(
        "skindx/data/copies/hash_links.py",
        "best_N[near.node_N[order_N[::-1]]] = order_N[::-1]",
        "best_N[near.node_N[order_N]] = order_N",
        "tests/data/test_near.py",
    ),
    "copies: the high end of the correlation for the low": Mutant(
        "skindx/data/copies/verify.py",
        "_quantile(ncc_HW, weight_HW, 0.15)",
        "_quantile(ncc_HW, weight_HW, 0.85)",
        "tests/data/copies/test_copies_pair.py -k correlation",
    ),
    "copies: each loss of detail is another level": Mutant(
        "skindx/data/copies/deduplicate.py",
        "level, top = level + 1, details[i]",
        "level, top = level + 1, top",
        "tests/data/test_resolution.py",
    ),
    "copies: upright ways before those of more points": Mutant(
        "skindx/data/copies/geometry.py",
        "key=lambda model: (-model.inliers, model.mirrored)",
        "key=lambda model: (model.mirrored, -model.inliers)",
        "tests/data/copies/test_copies_points.py",
    ),
    "copies: hardly any overlap is enough": Mutant(
        "skindx/data/copies/geometry.py",
        "covered < LEAST_COVERED",
        "False",
        "tests/data/copies/test_copies_points.py",
    ),
    "copies: a refinement may go anywhere": Mutant(
        "skindx/data/copies/geometry.py",
        "moved < 12 else",
        "moved < 120 else",
        "tests/data/copies/test_copies_points.py",
    ),
    "copies: the sides of a frame swapped": Mutant(
        "skindx/data/copies/overlap.py",
        "0 < x <= shape_hw[1] and 0 < y <= shape_hw[0]",
        "0 < x <= shape_hw[0] and 0 < y <= shape_hw[1]",
        "tests/data/copies/test_copies_points.py",
    ),
    "screening: a high strip has no bad aspect": Mutant(
        "skindx/data/screening/image_measures.py",
        "if max(width, height) > settings.max_aspect * min(width, height):",
        "if width > settings.max_aspect * height:",
        "tests/data/test_screen.py",
    ),
    "growth: the scales of the photos swapped": Mutant(
        "skindx/scan/compare/changes.py",
        "before.mm_per_pixel / after.mm_per_pixel)",
        "after.mm_per_pixel / before.mm_per_pixel)",
        "tests/scan/test_scan_compare.py",
    ),
    "bundle: files of a file manager are extra files": Mutant(
        "skindx/models/bundle/bundle_index.py",
        "if is_unfinished(name) or is_clutter(name):",
        "if is_unfinished(name):",
        "tests/models/test_bundle_files.py::test_what_file_managers_leave_is_no_part_of_a_bundle",
    ),
    "terminal: characters that an encoding lacks end the answer": Mutant(
        "skindx/cli/__init__.py",
        'stream.reconfigure(errors="skindx.nearest")',
        'stream.reconfigure(errors="strict")',
        "tests/cli/test_hostile_names.py::test_what_an_encoding_lacks_is_replaced",
    ),
    "review: copies of several classes ask nobody": Mutant(
        "skindx/review/dataset_review.py",
        "labels_apart(same, labels).items()",
        "{}.items()",
        "tests/review/test_dataset_review.py",
    ),
    "page: the end of an earlier stream loses the next question": Mutant(
        "skindx/ui/page/assets/session.js",
        "if (!open && streams === number && joins === asking) lost();",
        "lost();",
        "tests/ui/test_browser_lost.py::test_what_belongs_to_an_earlier_case_changes_nothing",
    ),
    "page: a late answer stands in the place of the next case's": Mutant(
        "skindx/ui/page/diagnosis_page.py",
        "return self._of.get(tab, 0) > (number or 0) > 0",
        "return False",
        "tests/ui/test_browser_lost.py::test_what_belongs_to_an_earlier_case_changes_nothing",
    ),
    "leak: a bundle's test images count as seen": Mutant(
        "skindx/evaluation/leak.py",
        'for sha, split in (bundle.seen() or {}).items() if split != "test"}',
        "for sha, split in (bundle.seen() or {}).items()}",
        "tests/evaluation/test_leak.py::test_a_bundle_and_an_older_one",
    ),
    "share of groups: fewer trials than Kish's number": Mutant(
        "skindx/metrics/share_intervals.py",
        "max(least, min(n, share * (1 - share) / max(variance, 1e-300)))",
        "min(n, share * (1 - share) / max(variance, 1e-300))",
        "tests/metrics/test_intervals_by_hand.py",
    ),
    "calibration error: images of one group count alone": Mutant(
        "skindx/metrics/share_intervals.py",
        "_standard_error(bins_N, hits_N, bins) * alike",
        "_standard_error(bins_N, hits_N, bins)",
        "tests/metrics/test_intervals_by_hand.py",
    ),
    "better member: a coin flip is taken for a choice": Mutant(
        "skindx/evaluation/member_gains.py",
        "return self.shares[self.best] >= SURE",
        "return True",
        "tests/evaluation/test_member_gains.py",
    ),
    "as served: a refused image has a next step": Mutant(
        "skindx/evaluation/served_scores.py",
        'steps_N = np.where(refused_N, "none", unrefused_N)',
        "steps_N = unrefused_N",
        "tests/evaluation/test_served_scores.py",
    ),
    "gap test: classes explain nothing": Mutant(
        "skindx/metrics/bootstrap.py",
        "- (sum_C / np.maximum(count_C, 1))[classes_N]",
        "- hits_N.mean()",
        "tests/metrics/test_intervals_by_hand.py",
    ),
    "bootstrap: unseen images of a mean over classes are those of all": Mutant(
        "skindx/metrics/bootstrap.py",
        "for strata in (None, strata_N)]",
        "for strata in (None, None)]",
        "tests/metrics/test_intervals_by_hand.py",
    ),
    "refusals: no word that they are no all-clear": Mutant(
        "skindx/diagnosis/scope.py",
        'return f"{message} {not_judged()}"',
        "return message",
        "tests/diagnosis/test_refusals.py::test_no_refusal_sounds_like_an_all_clear",
    ),
    "refusals: any word of a person passes the check of modality": Mutant(
        "skindx/diagnosis/network_gates.py",
        "said = other if gates.modality and modality == gates.modality.kind else set()",
        "said = other if modality else set()",
        "tests/diagnosis/test_modality_said.py",
    ),
    "refusals: an answer that a person had against the check may give time": Mutant(
        "skindx/diagnosis/record_assembly.py",
        'no_wait = joined(text("no_wait_said") if said else "", stated.no_wait)',
        "no_wait = stated.no_wait",
        "tests/diagnosis/test_modality_said.py",
    ),
    "refusals: a photo from afar is offered no scan": Mutant(
        "skindx/diagnosis/network_gates.py",
        'text("refused_afar_do")] if count else []',
        'text("refused_afar_do")] if count and not count else []',
        "tests/diagnosis/test_refusals.py::test_a_refused_photo_from_afar_is_offered_a_scan",
    ),
    "joining: boxes that overlap by two fifths are two lesions": Mutant(
        "skindx/scan/tile_search.py",
        "(iou(box, better_K4) >= SAME_LESION_IOU)",
        "(iou(box, better_K4) >= SAME_TILE_IOU)",
        "tests/scan/test_scan_join.py",
    ),
    "joining: a box around two close lesions is averaged with one of them": Mutant(
        "skindx/scan/tile_search.py",
        "apart |= _nested(detections.boxes_N4[n], first_K4[[overlap_K.argmax()]])[0]",
        "apart |= False",
        "tests/scan/test_scan_join.py",
    ),
    "scan: a share of paintings is promised for photos": Mutant(
        "skindx/scan/outputs/scan_result.py",
        "if detected and band.found and measured_on.holds_for_photos:",
        "if detected and band.found:",
        "tests/scan/test_scan_outputs.py -k paintings",
    ),
    "bundle: a detector's paintings stay behind": Mutant(
        "skindx/models/bundle/bundle.py",
        "detector_images=detector.images if detector else None,",
        "detector_images=None,",
        "tests/training/test_detection.py tests/models/test_detector_recall.py",
    ),
    "joining: the larger of two parts decides": Mutant(
        "skindx/scan/tile_search.py",
        "TOUCHING * min(_area(a_4), _area(b_4))",
        "TOUCHING * _area(a_4)",
        "tests/scan/test_scan_join.py",
    ),
    "ruler: one longest tick will do": Mutant(
        "skindx/scan/ruler.py",
        "(level_T == 0).sum() >= 2",
        "(level_T == 0).sum() >= 1",
        "tests/scan/test_scan_ruler.py",
    ),
    "urgent: a risk at the threshold is below it": Mutant(
        "skindx/diagnosis/record_figures.py",
        "return self.risk >= self.threshold",
        "return self.risk > self.threshold",
        "tests/diagnosis/test_conclusion.py tests/diagnosis/test_record.py",
    ),
    "set: without the likeliest class of the mean": Mutant(
        "skindx/diagnosis/conclusion.py",
        "in_set_C[probabilities_C.argmax()] = True",
        "pass",
        "tests/diagnosis/test_conclusion.py",
    ),
    "abstention: five conditions are too many": Mutant(
        "skindx/diagnosis/conclusion.py",
        "possible <= LARGEST_SET and",
        "possible < LARGEST_SET and",
        "tests/diagnosis/test_conclusion.py",
    ),
    "abstention: half of all conditions are too many": Mutant(
        "skindx/diagnosis/conclusion.py",
        "2 * possible <= classes",
        "2 * possible < classes",
        "tests/diagnosis/test_conclusion.py",
    ),
    "abstention: half of the networks are too few": Mutant(
        "skindx/diagnosis/conclusion.py",
        "if first_M.sum() < (least",
        "if first_M.sum() <= (least",
        "tests/diagnosis/test_conclusion.py",
    ),
    "abstention: networks at the limit disagree": Mutant(
        "skindx/diagnosis/conclusion.py",
        'if disagreement > MOST_DISAGREEMENT else ""',
        'if disagreement >= MOST_DISAGREEMENT else ""',
        "tests/diagnosis/test_conclusion.py",
    ),
    "next step: nine tenths are not enough": Mutant(
        "skindx/diagnosis/next_step.py",
        "carried >= CARRIED - 1e-9",
        "carried > CARRIED + 1e-9",
        "tests/diagnosis/test_conclusion.py",
    ),
    "next step: routine outweighs unknown": Mutant(
        "skindx/diagnosis/next_step.py",
        '("routine", "unknown", "soon", "urgent")',
        '("unknown", "routine", "soon", "urgent")',
        "tests/diagnosis/test_conclusion.py",
    ),
    "abstention: too many conditions may wait": Mutant(
        "skindx/diagnosis/conclusion.py",
        'if abstained and step.urgency == "routine":',
        'if doubtful and step.urgency == "routine":',
        "tests/diagnosis/test_conclusion.py",
    ),
    "soon: the risk takes the reason of an urgent condition that is not ruled out": Mutant(
        "skindx/diagnosis/next_step.py",
        "if by_set and _urgent_is_named(ranked):",
        "if False:",
        "tests/diagnosis/test_conclusion.py",
    ),
    "disagreement: members weigh the same": Mutant(
        "skindx/diagnosis/conclusion.py",
        "mutual_information(members_MC[:, None], predictor.weights)",
        "mutual_information(members_MC[:, None])",
        "tests/diagnosis/test_conclusion.py",
    ),
    "disagreement: of the first photo alone": Mutant(
        "skindx/diagnosis/conclusion.py",
        "probabilities_PC.mean(axis=0), members_MPC.mean(axis=1)",
        "probabilities_PC.mean(axis=0), members_MPC[:, 0]",
        "tests/diagnosis/test_conclusion.py",
    ),
    "urgent: the higher of two rates is the default": Mutant(
        "skindx/models/urgent_risk.py",
        "(abs(rate - DEFAULT_MISS_RATE), rate)",
        "(abs(rate - DEFAULT_MISS_RATE), -rate)",
        "tests/models/test_urgent_risk.py",
    ),
    "urgent: a skin type counts other conditions": Mutant(
        "skindx/models/urgent_risk.py",
        "urgent_N & (types_N == skin_type)",
        "(types_N == skin_type)",
        "tests/models/test_urgent_risk.py",
    ),
    "cut: what is dark along three sides is a lesion": Mutant(
        "skindx/imaging/cut_lesions.py",
        ">= MOST_TOUCHING and _sides(region_HW) > 1",
        ">= MOST_TOUCHING and False",
        "tests/imaging/test_cut_lesions.py",
    ),
    "case book: sealed to the last part of its place": Mutant(
        "skindx/casebook/key_file.py",
        "return json.dumps(place).encode()",
        "return json.dumps(place[-1:]).encode()",
        "tests/casebook/test_binding.py tests/casebook/test_encryption.py",
    ),
    "private files: what a library wrote stays open": Mutant(
        "skindx/core/private_files.py",
        "        yield folder\n        close_to_others(folder)",
        "        yield folder",
        "tests/core/test_private_files.py -k library",
    ),
    "private files: a folder by the umask": Mutant(
        "skindx/core/private_files.py",
        "        missing.chmod(_FOLDER)  # a umask may have taken more\n",
        "",
        "tests/core/test_private_files.py -k takes_all",
    ),
    "private files: the page of a comparison by another writer": Mutant(
        "skindx/scan/compare/scan_comparison.py",
        "write_private(new / PAGE, render_comparison(comparison))",
        "(new / PAGE).write_text(render_comparison(comparison))",
        "tests/core/test_private_files.py -k nothing_else",
    ),
    "urgent: the rank of a threshold without the new lesion": Mutant(
        "skindx/models/urgent_risk.py",
        "math.floor(round((lesions + 1) * miss_rate, 9))",
        "math.floor(round(lesions * miss_rate, 9))",
        "tests/models/test_urgent_risk.py",
    ),
    "urgent: a test image at the threshold is missed": Mutant(
        "skindx/models/urgent_risk.py",
        "share_interval(risk_N >= threshold, groups_N)",
        "share_interval(risk_N > threshold, groups_N)",
        "tests/models/test_urgent_risk.py",
    ),
    "urgent: no skin type has a threshold of its own": Mutant(
        "skindx/models/urgent_risk.py",
        "return name if name in level.thresholds else ALL",
        "return ALL",
        "tests/models/test_urgent_risk.py",
    ),
    "urgent: the confidence of one lesion more": Mutant(
        "skindx/models/urgent_risk.py",
        "betainc(rank, self.lesions + 1 - rank, self.miss_rate)",
        "betainc(rank, self.lesions + 2 - rank, self.miss_rate)",
        "tests/models/test_urgent_risk.py",
    ),
    "answers: photos side by side in one batch": Mutant(
        "skindx/models/ensemble.py",
        'size = 1 if self.classifier.scale.device.type == "cpu" else batch',
        "size = batch",
        "tests/api/test_predictions.py tests/diagnosis/test_cases.py",
    ),
    "removed names: an option of a group of verbs": Mutant(
        "skindx/core/removed_names.py",
        "range(len(parents), 0, -1)",
        "range(len(parents), len(parents) - 1, -1)",
        "tests/core/test_removed_names.py",
    ),
    "settings: only the first mistake is told": Mutant(
        "skindx/core/settings_errors.py",
        "_MOST_ERRORS, _MOST_SHOWN = 100, 6",
        "_MOST_ERRORS, _MOST_SHOWN = 100, 1",
        "tests/core/test_config.py",
    ),
    "prevalence: weighed the wrong way round": Mutant(
        "skindx/models/combination.py",
        "np.array(self.shares_C) / np.array(self.calibration_C)",
        "np.array(self.calibration_C) / np.array(self.shares_C)",
        "tests/diagnosis/test_prevalence.py",
    ),
    "prevalence: shares that sum to less than one": Mutant(
        "skindx/models/combination.py",
        "if abs(total - 1) > _SUM_SLACK:",
        "if total - 1 > _SUM_SLACK:",
        "tests/diagnosis/test_prevalence.py",
    ),
    "prevalence: a share of nothing": Mutant(
        "skindx/models/combination.py",
        "not 0 < value <= 1",
        "not 0 <= value <= 1",
        "tests/diagnosis/test_prevalence.py",
    ),
    "temperature: the rival of another mix": Mutant(
        "skindx/models/combination.py",
        "rivals_NC = scores_NC + log_shifts_C",
        "rivals_NC = scores_NC + 0.0",
        "tests/models/test_calibration.py",
    ),
    "adaptation: a prior of one image": Mutant(
        "skindx/models/adaptation.py",
        "(counts_C + classes * self.parent.mix_C) / (counts_C.sum() + classes)",
        "(counts_C + self.parent.mix_C) / (counts_C.sum() + 1)",
        "tests/evaluation/test_adapt.py::test_the_mix_is_the_local_lesions_and_one_prior_image_a_class",
    ),
    "out-of-distribution: an equal score counts as lower": Mutant(
        "skindx/models/ood/ood_check.py",
        'queries_QK[:, 0], side="left"',
        'queries_QK[:, 0], side="right"',
        "tests/models/test_ood.py",
    ),
    "blur: the floor sinks with the light itself": Mutant(
        "skindx/imaging/photo_gates.py",
        "FLOOR * light**2",
        "FLOOR * light",
        "tests/imaging/test_gates.py::test_less_light_is_no_blur",
    ),
    "dermoscopic: the threshold without the new photo": Mutant(
        "skindx/imaging/photo_gates.py",
        "RATE * (len(scores_N) + 1) + 1e-9",
        "RATE * len(scores_N) + 1e-9",
        "tests/imaging/test_modality.py",
    ),
    "colours: the profile of a JPEG is not applied": Mutant(
        "skindx/imaging/decode.py",
        "if grey else colours.rgb(pixels_HWC)",
        "if grey else pixels_HWC",
        "tests/imaging/test_colours.py::test_patches_are_those_computed_by_hand",
    ),
    "colours: hashes of a small JPEG as stored": Mutant(
        "skindx/imaging/decode.py",
        'if colours.there and colorspace != "Gray":',
        'if False and colorspace != "Gray":',
        "tests/imaging/test_colours.py::test_a_small_grey_decode_sees_the_colours_of_the_large_one",
    ),
    "colours: inks are mixed without their profile": Mutant(
        "skindx/imaging/srgb.py",
        "return convert(image) if convert else",
        "return",
        "tests/imaging/test_colours.py::test_inks_are_mixed_by_their_profile",
    ),
    "colours: iCCP before cICP": Mutant(
        "skindx/imaging/stored_colours.py",
        'if code := chunks.get(b"cICP"):',
        'if b"iCCP" not in chunks and (code := chunks.get(b"cICP")):',
        "tests/imaging/test_colours.py::test_a_png_says_its_colours_as_to_browsers",
    ),
    "colours: gamma without primaries counts": Mutant(
        "skindx/imaging/stored_colours.py",
        'not {b"gAMA", b"cHRM"} <= chunks.keys()',
        'b"cHRM" not in chunks',
        "tests/imaging/test_colours.py::test_a_png_says_its_colours_as_to_browsers",
    ),
    "colours: a chain of curves is gone through": Mutant(
        "skindx/imaging/srgb.py",
        "if name in _SLOW:",
        "if False:",
        "tests/imaging/test_colours.py::test_a_chain_of_many_elements_is_not_gone_through",
    ),
    "colours: parts of a profile in the order of the file": Mutant(
        "skindx/imaging/stored_colours.py",
        "for key in sorted(parts))",
        "for key in parts)",
        "tests/imaging/test_colours.py::test_a_jpeg_whose_parts_of_a_profile_do_not_fit_is_read_without",
    ),
    "colours: tables that are off by the linear light": Mutant(
        "skindx/imaging/srgb.py",
        "1.055 * steps ** (1 / 2.4)",
        "1.055 * steps ** (1 / 2.2)",
        "tests/imaging/test_colours.py::test_numpy_and_the_compiled_loop_give_the_same_pixels",
    ),
    "colours: an older bundle sees sRGB": Mutant(
        "skindx/diagnosis/predictor.py",
        "decoding=self.decoding",
        'decoding="srgb-1"',
        "tests/diagnosis/test_photo_colours.py",
    ),
    "colours: an older dataset is read as sRGB": Mutant(
        "skindx/data/loader/source.py",
        "decode(data, at_least=at_least, decoding=self.decoding)",
        "decode(data, at_least=at_least)",
        "tests/data/test_dataset_colours.py",
    ),
    "colours: the cache of other colours stays": Mutant(
        "skindx/data/loader/pixels.py",
        '{"decoding": files.decoding} if',
        "{} if",
        "tests/data/test_dataset_colours.py",
    ),
    "colours: a scan ignores profiles": Mutant(
        "skindx/scan/photo_store.py",
        "else colours.rgb(pixels_HWC))",
        "else pixels_HWC)",
        "tests/scan/test_scan_opening.py",
    ),
    "colours: the frame's profile before the header's": Mutant(
        "skindx/imaging/dicom_pixels.py",
        'if profile := header.get("ICCProfile"):',
        'if self.syntax not in _JPEG and (profile := header.get("ICCProfile")):',
        "tests/imaging/test_dicom_pixels.py",
    ),
    "orientation: XMP turns an image": Mutant(
        "skindx/imaging/decode.py",
        'kept = ("exif", "Raw profile type exif")',
        'kept = ("exif", "xmp", "XML:com.adobe.xmp")',
        "tests/imaging/test_decode.py",
    ),
    "orientation: XMP turns a TIFF": Mutant(
        "skindx/imaging/decode.py",
        'image.info.pop("xmp", None)',
        "pass",
        "tests/imaging/test_decode.py",
    ),
    "TIFF: white is the largest number, always": Mutant(
        "skindx/imaging/decode.py",
        "return 255 - grey_HW if tags.get(_PHOTOMETRIC) == 0 else grey_HW",
        "return grey_HW",
        "tests/imaging/test_decode.py",
    ),
    "TIFF: 12 and 32 bits as 16": Mutant(
        "skindx/imaging/decode.py",
        "deep_HW >> (bits - 8 - signed)",
        "deep_HW >> 8",
        "tests/imaging/test_decode.py",
    ),
    "conformal: the rank without the new image": Mutant(
        "skindx/models/conformal.py",
        "math.ceil(round((n + 1) * level, 9))",
        "math.ceil(round(n * level, 9))",
        "tests/models/test_conformal.py",
    ),
    "conformal: a class at its threshold is out": Mutant(
        "skindx/models/conformal.py",
        "probabilities_NC >= least_NC",
        "probabilities_NC > least_NC",
        "tests/models/test_conformal.py",
    ),
    "boxes: a photo turned by a quarter and not mirrored": Mutant(
        "skindx/data/boxes/box_join.py",
        "size[::-1] if orientation >= 5 else size",
        "size[::-1] if orientation > 6 else size",
        "tests/data/test_box_matching.py",
    ),
    "boxes: below the photo is inside it": Mutant(
        "skindx/data/boxes/box_join.py",
        "box.x2 <= width + SLACK and box.y2 <= height + SLACK",
        "box.x2 <= width + SLACK",
        "tests/data/test_box_matching.py",
    ),
    "agreement: pairs below the threshold crowd out others": Mutant(
        "skindx/data/box.py",
        "np.where(iou_AB >= threshold, iou_AB, 0.0)",
        "iou_AB",
        "tests/data/test_boxes_agreement.py",
    ),
    "agreement: an overlap at the threshold is none": Mutant(
        "skindx/data/box.py",
        "if iou_AB[i, j] >= threshold]",
        "if iou_AB[i, j] > threshold]",
        "tests/data/test_boxes_agreement.py -k threshold",
    ),
    "agreement: kappa forgets chance": Mutant(
        "skindx/data/boxes/annotations.py",
        "np.divide(observed_D - chance_D, 1 - chance_D",
        "np.divide(observed_D, 1 - chance_D",
        "tests/data/test_boxes_agreement.py",
    ),
    "copies: of few families none recurs": Mutant(
        "skindx/data/copies/copy_candidates.py",
        "return max(LEAST_FAMILIES, int(SHARE * families))",
        "return min(LEAST_FAMILIES, int(SHARE * families))",
        "tests/data/copies",
    ),
    "copies: every candidate leads": Mutant(
        "skindx/data/copies/copy_candidates.py",
        "rank_R < LEADING_IMAGES",
        "rank_R >= 0",
        "tests/data/copies",
    ),
    "patches: a step without their overlap": Mutant(
        "skindx/scan/patches.py",
        "range(0, last, patch - overlap)",
        "range(0, last, patch)",
        "tests/scan/test_scan_tiles.py",
    ),
    "changes: many lesions, none corrected for": Mutant(
        "skindx/scan/compare/changes.py",
        "false_discovery_control(p_N) <= _FALSE_SHARE",
        "p_N <= _FALSE_SHARE",
        "tests/scan/test_scan_compare.py",
    ),
    "changes: one of the two limits of a colour will do": Mutant(
        "skindx/scan/compare/changes.py",
        "(away_N > _LEAST_COLOUR) & (away_N",
        "(away_N > _LEAST_COLOUR) | (away_N",
        "tests/scan/test_scan_compare.py",
    ),
    "frame: heat of the bars is kept": Mutant(
        "skindx/diagnosis/heat_maps.py",
        "over[max(-top, 0) :, max(-left, 0) :][:height, :width]",
        "cv2.resize(over, (width, height)) if top < 0 or left < 0 else over",
        "tests/diagnosis/test_gradcam.py",
    ),
    "frame: heat is scaled by that of the bars": Mutant(
        "skindx/diagnosis/heat_maps.py",
        "inside = inside / inside.max()",
        "pass",
        "tests/diagnosis/test_gradcam.py",
    ),
    "frame: the square changes the hashes of older bundles": Mutant(
        "skindx/models/classifier/preprocess.py",
        'del fields["frame"]',
        "pass",
        "tests/models/test_preprocess.py",
    ),
    "frame: training shows whole images at their centre alone": Mutant(
        "skindx/training/tasks/image_sets.py",
        "fill_random_crops(*drawn, bars=bars, out_TSS3=out_TSS3)",
        "fill_random_crops(*drawn, out_TSS3=out_TSS3)",
        "tests/training/test_images.py -k whole",
    ),
    "frame: a mixed ensemble is shown as whole": Mutant(
        "skindx/models/bundle/bundle_index.py",
        "return max(squares or seen,",
        "return max(seen[::-1],",
        "tests/ui/test_answer_texts.py -k whole",
    ),
    "cut: a box is compared with all of the photo": Mutant(
        "skindx/imaging/cut_lesions.py",
        "return _box_cut_by(boxes[0], seen,",
        "return _box_cut_by(boxes[0], (0, 0, 1, 1),",
        "tests/imaging/test_cut_lesions.py",
    ),
    "cut: the edge of the photo cuts nothing": Mutant(
        "skindx/imaging/cut_lesions.py",
        "if along >= LEAST_TOUCHING:",
        "if False:",
        "tests/imaging/test_cut_lesions.py",
    ),
    "cut: a shadow is a lesion": Mutant(
        "skindx/imaging/cut_lesions.py",
        "(1 - LEAST_CONTRAST) * rest",
        "rest",
        "tests/imaging/test_cut_lesions.py",
    ),
    "cut: predictions do not say it": Mutant(
        "skindx/diagnosis/network_gates.py",
        '"remarks": (cut_text(cut), *photo.remarks)',
        '"remarks": photo.remarks',
        "tests/diagnosis/test_cut_lesion.py",
    ),
    "int8: a layer that makes no numbers hurts least": Mutant(
        "skindx/models/exports/bundle_export.py",
        "nan=np.inf",
        "nan=0.0",
        "tests/models/test_int8_exports.py",
    ),
    "int8: a faster median is enough": Mutant(
        "skindx/models/exports/fidelity.py",
        "if gain.low <= 1:",
        "if gain.value <= 1:",
        "tests/models/test_int8_exports.py tests/models/test_export_choice.py",
    ),
}


def _link(source: str, target: str) -> None:
    """Give a file a second name, which takes no time; or copy it from another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def survives(mutant: Mutant) -> bool:
    """Tell whether the tests pass although the fault is planted.

    Raises ValueError where the package has no such line, or the tests cannot run.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(folder, name), copy_function=_link)
            else:
                shutil.copy2(ROOT / name, Path(folder, name))
        file = Path(folder, mutant.file)
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.line) != 1:
            raise ValueError(f"{mutant.file} has {mutant.line!r} {text.count(mutant.line)} times")
        file.unlink()  # the checkout has it too
        file.write_text(text.replace(mutant.line, mutant.instead), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", *shlex.split(mutant.tests)]
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    if ended.returncode not in (0, 1):
        raise ValueError(f"pytest ended with {ended.returncode}: {ended.stdout.decode()[-600:]}")
    return ended.returncode == 0


def main(names: list[str]) -> int:
    """Plant the named faults, or all; return 1 where one survives."""
    survived = 0
    for name in names or MUTANTS:
        alive = survives(MUTANTS[name])
        survived += alive
        print(f"{'SURVIVES' if alive else 'killed':8}  {name}", flush=True)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
