"""What is imported for a start, and that torch's compiler still works afterwards."""

import json
import subprocess
import sys
from pathlib import Path

STARTS = """
import json, sys
from skindx.core.machine import go_offline
go_offline()
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.detector import build_detection_model
from skindx.training.deepspeed.ranks import import_deepspeed
import torch
import_deepspeed()
import skindx.training.checks, skindx.training.run
from skindx.models.classifier.network_setup import shapes_only
settings = ClassifierSettings(model="test_resnet")
with shapes_only():
    build_classifier(settings, 2)
network = build_classifier(settings, 2).eval()
network(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
heavy = ("torch._dynamo", "sympy", "wandb", "mlflow", "pandas")
loaded = [name for name in heavy if name in sys.modules]

from skindx.core.startup import light_imports, never_compiled
seen = []

@never_compiled
def aside(x):
    seen.append(torch.compiler.is_compiling())
    return x + 1

compiled = torch.compile(lambda x: aside(x * 2) * 2, backend="eager")
import wandb
from torchvision.ops import roi_align
pooled = roi_align(torch.ones(1, 1, 4, 4), [torch.tensor([[0.0, 0, 4, 4]])], 2)
with light_imports():
    import wandb as again
print(json.dumps({
    "loaded": loaded,
    "value": compiled(torch.ones(2)).tolist(),
    "compiling": seen,
    "pooled": pooled.flatten().tolist(),
    "same": again is wandb,
}))
"""


def test_a_start_leaves_the_compiler_and_the_trackers_out_and_they_still_work() -> None:
    command = [sys.executable, "-c", STARTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "loaded": [],
        "value": [6.0, 6.0],
        "compiling": [False],
        "pooled": [1.0] * 4,
        "same": True,
    }


COUNTS = """
import gc
from skindx.core.startup import collect_rarely
collect_rarely()
import torch
print(gc.get_stats()[2]["collections"], gc.isenabled())
"""


def test_a_start_collects_no_imports_and_later_garbage_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True"]


ENDS = """
import atexit, sys, tempfile
from skindx.core.startup import collect_rarely
collect_rarely()
class Noisy:
    def __del__(self):
        print("collected", flush=True)
class Cycle:
    pass
cycle = Cycle()
cycle.itself, cycle.noisy = cycle, Noisy()
del cycle
folder = tempfile.TemporaryDirectory(dir=sys.argv[1])
atexit.register(print, "finalized")
print("end")
"""


def test_the_end_collects_no_cycles_and_runs_every_finalizer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["end", "finalized"]
    assert not list(tmp_path.iterdir()), "the temporary folder is still there"
