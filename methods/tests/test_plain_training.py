"""A training that names no kind of the kit loads none of its code."""

import json
import subprocess
import sys
from importlib.metadata import distribution

LOADS = """
import json, sys
import skindx.training.jobs, skindx.training.run
from skindx.training.config.run import TrainSettings
from skindx.training.registry import run_method
run_method(TrainSettings.parse({"members": [{"name": "a", "model": "test_resnet"}]}))
print(json.dumps([name for name in sys.modules if name.startswith("skindx_methods.")]))
"""


def test_only_settings_are_loaded_which_could_be_named() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    groups = ("skindx.exchanges", "skindx.parallel_forms", "skindx.preconditioners")
    named = {
        point.module
        for point in distribution("skindx-methods").entry_points
        if point.group in groups
    }
    folders = {name.rpartition(".")[0] for name in named}
    assert set(json.loads(done.stdout)) == named | folders
