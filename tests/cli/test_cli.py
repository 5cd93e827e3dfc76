import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from command_line import Skindx

from skindx import cli
from skindx.cli.options import lay_out


def _images(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for index in range(count):
        coarse = rng.integers(60, 220, (6, 8, 3), dtype=np.uint8)
        image = cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)
        noisy = image.astype(int) + rng.integers(-20, 20, image.shape)
        cv2.imwrite(str(folder / f"{index}.png"), np.clip(noisy, 0, 255).astype(np.uint8))


def _one_sentence(code: int, err: str, said: str) -> None:
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert said in err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("absent", "does not exist"),
        ("empty", "empty"),
        ("one class", "class"),
        ("two pictures", "2"),
        ("unreadable", "picture"),
    ],
)
def test_bad_folders(skindx: Skindx, tmp_path: Path, kind: str, said: str) -> None:
    source = tmp_path / "pictures"
    if kind != "absent":
        source.mkdir()
    if kind == "one class":
        _images(source / "Rosacea", 4)
    elif kind == "two pictures":
        _images(source / "Rosacea", 4)
        _images(source / "Acne", 2, seed=1)
    elif kind == "unreadable":
        for label in ("Rosacea", "Acne"):
            (source / label).mkdir()
            for index in range(4):
                (source / label / f"{index}.jpg").write_text("no picture")
    code, _, err = skindx("build", str(source), "--out", str(tmp_path / "data"))
    _one_sentence(code, err, said)
    assert not (tmp_path / "data" / "manifest.parquet").exists()


def test_a_folder_of_class_folders_becomes_a_dataset(skindx: Skindx, tmp_path: Path) -> None:
    for seed, label in enumerate(("Rosacea", "Acne")):
        _images(tmp_path / "pictures" / label, 12, seed)
    (tmp_path / "pictures" / "Acne" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    out = tmp_path / "data"
    code, printed, err = skindx("build", str(tmp_path / "pictures"), "--out", str(out))
    assert code == 0, err
    assert "24 of 25 images kept" in printed
    for name in ("manifest.parquet", "issues.parquet", "taxonomy.yaml", "recipe.yaml"):
        assert (out / name).is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "nowhere", "--out", "run"), "nowhere"),
        (("train", "nowhere", "--out", "run", "--set", "recpie.epochs=1"), "did you mean 'recipe'"),
        (("train", "nowhere", "--out", "run", "--config", "no.yaml"), "no.yaml does not exist"),
        (("evaluate", "nowhere", "nodata"), "does not exist"),
        (("diagnose", "nowhere", "photo.jpg"), "bundle nowhere does not exist"),
        (("serve", "nowhere"), "bundle nowhere does not exist"),
        (("bench", "strtup"), "startup"),
        (("trian", "data"), "Did you mean 'train'? `skindx --help` lists what it takes."),
        (("train",), "Missing argument 'dataset'; `skindx train --help` lists what it takes."),
        (("serve", "bundle", "--port", "abc"), "'--port': it must be a whole number; `skindx"),
        (("casebook", "list", "--outt", "x"), "`skindx casebook list --help`"),
        (("build", "recipe.yaml", "--out", "data"), "recipe.yaml"),
        (("doctor", "--upgrade"), "requires an argument; `skindx doctor --help`"),
        (("new", "x", "--effort", "fast"), "'--effort': 'fast' is not one of"),
    ],
)
def test_bad_arguments(
    skindx: Skindx,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = skindx(*arguments)
    _one_sentence(code, err, said)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_folder_is_named_and_the_right_one_too(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    for file in ("run/bundle/bundle.json", "run/data/manifest.parquet", "lone/bundle.json"):
        Path(file).parent.mkdir(parents=True)
        Path(file).touch()
    bundle, data, photo = run / "bundle", run / "data", Path("photo.jpg")
    photo.touch()
    for words, said in (
        (("diagnose", run, photo), f"give {bundle}."),
        (("diagnose", bundle / "bundle.json", photo), f"give {bundle}."),
        (("diagnose", data, photo), f"give {bundle}."),
        (
            ("diagnose", photo, bundle),
            f"the bundle must come before the photos; run `skindx diagnose {bundle}",
        ),
        (("review", run), f"give {data}."),
        (("review", data / "manifest.parquet"), f"give {data}."),
        (("review", bundle), f"give {data}."),
        (("review", "lone"), "it is a bundle; give a folder that `skindx build` wrote."),
        (("review", photo), "it is a file; give a folder that `skindx build` wrote."),
    ):
        _one_sentence(*skindx(*words)[::2], said)


def commands(of: typer.Typer) -> Iterator[Any]:
    group = typer.main.get_command(of)
    waiting = [group]
    while waiting:
        command = waiting.pop()
        yield command
        waiting += getattr(command, "commands", {}).values()


def test_the_help_of_every_command_fits_any_terminal() -> None:
    every = {command.name: command.help or "" for command in commands(cli.app)}
    assert len(every) > 25
    for name, text in every.items():
        assert text, name
        assert "\n" not in text.replace("\n\n", ""), name


def test_help_teaches_and_imports_nothing_heavy() -> None:
    heavy = ["torch", "timm", "pydantic", "numpy", "scrapy", "gradio", "deepspeed", "pyarrow"]
    code = (
        "import sys; sys.argv = ['skindx', '--help']\n"
        "from skindx.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('LOADED', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert "LOADED []" in done.stdout
    for verb in ("build", "train", "evaluate", "diagnose", "serve", "bench", "doctor", "demo"):
        assert verb in done.stdout
    assert "skindx build SOURCE --out DATA" in done.stdout


def test_version(skindx: Skindx) -> None:
    from skindx import __version__
    from skindx.core.measurement import commit

    known = f" (commit {commit()})" if commit() else ""
    assert skindx("--version")[:2] == (0, f"skindx {__version__}{known}\n")


def test_ctrl_c_in_a_verb_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = typer.Typer()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def asked() -> None:
        try:
            interrupted()
        except KeyboardInterrupt:
            raise typer.Abort from None  # as typer.prompt does

    commands.command("work", help="Work.")(interrupted)
    commands.command("ask", help="Ask.")(asked)
    lay_out(commands)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # which it sets, and others shall not keep
    for verb in ("work", "ask"):
        monkeypatch.setattr(sys, "argv", ["skindx", verb])
        with pytest.raises(SystemExit) as stopped:
            cli.run_app(commands, "skindx")
        assert stopped.value.code == 130
        assert capsys.readouterr().err.endswith("stopped; run the same command again to go on\n")
