"""A training that names no kind of the kit loads none of its code, nor does one method another."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import skindx_methods

KIT = Path(skindx_methods.__file__).parent
LOADS = """
import json, sys
from skindx.training.config.run import TrainSettings

def of_the_kit():
    return sorted(name for name in sys.modules if name.startswith("skindx_methods"))

settings = TrainSettings.parse({"members": [{"name": "a", "model": "test_resnet"}]})
loaded = of_the_kit()
import skindx.training.jobs, skindx.training.run
from skindx.training.registry import run_method
run_method(settings)
print(json.dumps([loaded, of_the_kit()]))
"""


def test_only_settings_are_loaded_which_could_be_named() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    by_settings, by_training = json.loads(done.stdout)
    assert by_training == by_settings
    assert "skindx_methods.kfac.kfac_settings" in by_settings
    assert "skindx_methods.kfac.kfac" not in by_settings


def test_one_method_does_not_know_another() -> None:
    """`plan` compares them all; its clusters and profiles are what each prices itself with."""
    folders = {path.parent for path in KIT.glob("*/__init__.py")} - {KIT / "plan"}
    assert folders
    for folder in folders:
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                known = not name.startswith("skindx_methods.") or name.split(".")[1]
                assert known in (True, folder.name, "plan"), f"{file}: {name}"
