"""Faults that once lived through all tests, planted again: `python tests/mutants.py [NAME …]`.

Each is a line of the package that is changed in a copy of the checkout, where the tests are run
that should fail. Says of each whether it was killed; ends with 1 where one survived. Run by hand
after changes of these places or their tests, not in CI: most of these tests start ranks.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("skindx", "tests", "data", "pyproject.toml", "docs", "README.md")
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
    "stages: statistics of batch norms all from the first": Mutant(
        "skindx/training/methods/sharding/whole.py",
        "pipeline.links.broadcast(values, pipeline.owners[name])",
        "pipeline.links.broadcast(values, 0)",
        "tests/training/test_stages.py",
    ),
    "split layers: a bad gradient that one rank knows of": Mutant(
        "skindx/training/methods/sharding/parts.py",
        "float(links.sum(own + math.nan if known_bad else own))",
        "float(links.sum(own))",
        "tests/training/test_stages.py",
    ),
    "LARS: no decay in the norm": Mutant(
        "skindx/training/methods/sharding/layerwise.py",
        "steep_N = gradients_N + decay * weights_N + group",
        "steep_N = gradients_N + group",
        "tests/training/test_tensor_parallel.py tests/training/test_optimizer.py",
    ),
    "LARS: no decay in the change": Mutant(
        "skindx/training/methods/sharding/layerwise.py",
        "change = weight.grad.add(weight, alpha=decay)",
        "change = weight.grad.clone()",
        "tests/training/test_tensor_parallel.py tests/training/test_optimizer.py",
    ),
    "K-FAC: the floor by the other factor": Mutant(
        "skindx/training/methods/kfac/eigen.py",
        "_counted(v_a * top_g > floor)",
        "_counted(v_a * top_a > floor)",
        "tests/training/test_kfac_prepared.py",
    ),
    "K-FAC: the floor of the outputs by the other factor": Mutant(
        "skindx/training/methods/kfac/eigen.py",
        "_counted(v_g * top_a > floor)",
        "_counted(v_g * top_g > floor)",
        "tests/training/test_kfac_prepared.py",
    ),
    "K-FAC: batch norms by one factor alone": Mutant(
        "skindx/training/methods/kfac/eigen.py",
        "values = outside.values_SW * values",
        "values = outside.values_SW * torch.ones_like(values)",
        "tests/training/test_kfac_prepared.py tests/training/test_kfac.py",
    ),
    "factored exchange: processors that round otherwise": Mutant(
        "skindx/comm/factored_exchange.py",
        "return bool((every_P2 == every_P2[0]).all())",
        "return True",
        "tests/comm/test_factored.py",
    ),
    "copies: the overlap by a map that is not transposed": Mutant(
        "skindx/data/copies/overlap.py",
        "np.linalg.inv(linear_22).T",
        "np.linalg.inv(linear_22)",
        "tests/data/copies/test_copies_overlap.py",
    ),
    "growth: the scales of the photos swapped": Mutant(
        "skindx/scan/compare/changes.py",
        "before.mm_per_pixel / after.mm_per_pixel)",
        "after.mm_per_pixel / before.mm_per_pixel)",
        "tests/scan/test_scan_compare.py",
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
        "skindx/diagnosis/record.py",
        "return self.risk >= self.threshold",
        "return self.risk > self.threshold",
        "tests/diagnosis/test_conclusion.py tests/diagnosis/test_record.py",
    ),
    "sparse: what follows an activation is fused too": Mutant(
        "skindx/models/exports/sparse_graph.py",
        "if not tail.relu and tail.act is None:",
        "if True:",
        "tests/models/test_fusion.py tests/models/test_sparse_exports.py",
    ),
    "case book: sealed to the last part of its place": Mutant(
        "skindx/casebook/encryption.py",
        "return json.dumps(place).encode()",
        "return json.dumps(place[-1:]).encode()",
        "tests/casebook/test_binding.py tests/casebook/test_encryption.py",
    ),
}


def survives(mutant: Mutant) -> bool:
    """Tell whether the tests pass although the fault is planted.

    Raises ValueError where the package has no such line, or the tests cannot run.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, Path(folder, name))
        file = Path(folder, mutant.file)
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.line) != 1:
            raise ValueError(f"{mutant.file} has {mutant.line!r} {text.count(mutant.line)} times")
        file.write_text(text.replace(mutant.line, mutant.instead), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", *mutant.tests.split()]
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
