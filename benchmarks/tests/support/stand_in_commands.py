"""Stand-ins for the commands of `gpu-release`, which write what the real ones do, at no cost.

`python stand_in_commands.py KIND TRACE ARGUMENTS…`: each step that is taken is a line of TRACE.
Interrupted as by Ctrl-C or SIGTERM it saves, as trainings do; a kill leaves its last checkpoint.
"""

import json
import signal
import sys
import time
from pathlib import Path

STEPS = 4
HANGS = "hangs.txt"


def note(text):
    with TRACE.open("a") as file:
        file.write(f"{text}\n")


def hang_once(step):
    """Wait for the end of the time at a step that HANGS names, the first time that it is taken."""
    hangs = TRACE.with_name(HANGS)
    left = hangs.read_text().splitlines() if hangs.is_file() else []
    if step in left:
        hangs.write_text("\n".join(own for own in left if own != step))
        time.sleep(60)


def train(run, name):
    """Take the steps of one member, from its checkpoint on."""
    folder = run / "checkpoints" / name
    saved = sorted(folder.glob("epoch-*/index.json"))
    for step in range(int(saved[-1].read_text()) + 1 if saved else 0, STEPS):
        note(f"{name} {step}")
        hang_once(f"{name} {step}")
        time.sleep(0.1)
        at = folder / f"epoch-{step:04d}-step-000000"
        (at / "shared").mkdir(parents=True, exist_ok=True)
        (at / "shared" / "tensors.safetensors").write_bytes(bytes([step]) * 3000)
        (at / "index.json").write_text(str(step))
    member = run / "members" / name
    member.mkdir(parents=True, exist_ok=True)
    (member / "model.safetensors").write_bytes(b"w" * 3000)
    (member / "history.csv").write_text("epoch,val_top1\n1,0.5\n2,0.75\n")
    (member / "member.json").write_text("{}")


def settings_of(arguments):
    given = [word.split("=", 1) for word in arguments if "=" in word]
    return dict(given), Path(arguments[arguments.index("--json") + 1])


def write(file, value):
    aside = file.with_suffix(".aside")
    aside.write_text(json.dumps(value))
    aside.replace(file)


def figures(**more):
    figure = {"value": 1.0, "unit": "points", "n": 3, "spread": [0.0, 2.0]}
    return {"figures": {"gain": figure}, "notes": ["a note"], "models": {}, "parts": {}, **more}


def trainer(arguments):
    _, file = settings_of(arguments)
    note(f"{file.stem} begun")
    time.sleep(0.5)
    rounds = {"trainer": [2.0, 1.0, 2.0], "timm": [3.0, 3.0, 3.0], "ceiling": [1.0, 1.0, 1.0]}
    write(
        file,
        {"parts": {"gpu_rounds_s": rounds}, "hardware": {"cpu": "a"}, "notes": ["how"]},
    )
    note(f"{file.stem} ended")


def folds(arguments):
    sets, file = settings_of(arguments)
    kept, out = Path(sets["kept"]), Path(sets["out"])
    kept.mkdir(exist_ok=True)
    for name in ("one-fold0", "two-fold0", "one-fold1", "two-fold1"):
        if not (kept / f"{name}.parquet").exists():
            train(out / name, name)
            (kept / f"{name}.parquet").write_text("rows")
    write(file, figures())


def pilot(arguments):
    """Of two rates the first one does better, though the second is done when it has ended."""
    _, _, run, _ = map(Path, arguments)
    train(run, run.name)
    value = 0.75 if run.name == "lars-0.1" else 0.5
    (run / "members" / run.name / "history.csv").write_text(
        f"epoch,val_balanced\n1,0.1\n2,{value}\n"
    )


def network(arguments):
    _, _, run, networks = map(Path, arguments)
    train(run, run.name)
    (networks / run.name).mkdir(parents=True, exist_ok=True)
    (run / "members").rename(networks / run.name / "members")


def convergence(arguments):
    sets, file = settings_of(arguments)
    for arm in ("dense", "lars", "lamb"):
        home = Path(sets["out"]) / "arms" / arm / "fold-0"
        if not (home / "evaluation" / "predictions.parquet").exists():
            train(home / "run", f"{arm}-seed")
            (home / "evaluation").mkdir()
            (home / "evaluation" / "predictions.parquet").write_text("rows")
    pair = {"figure": "balanced_accuracy", "loses_less_than_margin": True}
    models = {"dense": {"against": []}, "lars": {"against": [pair]}}
    write(file, figures(models=models))


if __name__ == "__main__":
    kind, trace, *rest = sys.argv[1:]
    TRACE = Path(trace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    globals()[kind](rest)
