import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.core.startup import light_imports
from skindx_bench.devices import wheels
from skindx_bench.devices.gpu import Config, gpu_tests, run
from skindx_bench.harness.parts import Part, count_tests, run_part
from skindx_bench.train.trainer_loops import peak_flops, peak_shares, training_flops

with light_imports():  # the first file of the suite that imports it
    import timm

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.timeout(600)
def test_everything_that_needs_a_gpu_runs_on_a_cpu_too(tmp_path: Path) -> None:
    """So that a short time on a GPU is not lost to a typo."""
    command = [sys.executable, "-m", "skindx_bench", "gpu", "--smallest"]
    done = subprocess.run(
        [*command, "--set", f"folder={tmp_path}", "--set", "tests_s=380", "--set", "trainer_s=200"],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "gpu-fake.json").read_text())
    assert written["hardware"]["accelerator"] == "fake, on the CPU"
    assert written["parts"]["tests"]["passed"] > 30
    assert written["parts"]["tests"]["failed"] == []
    assert written["parts"]["tests"]["skipped"] == {}
    assert {part["status"] for part in written["parts"].values()} == {"passed"}
    assert written["figures"]["ours_over_timm"]["value"] > 0
    assert written["figures"]["test_resnet, timm"]["unit"] == "images/s"


def test_without_a_gpu_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=r"needs an NVIDIA GPU.*--set fake=true"):
        run(Config())


def test_tests_for_a_gpu_are_taken_of_all_three_distributions() -> None:
    listed = gpu_tests(ROOT)
    assert "tests/training/test_gpu_engine.py" in listed
    assert "benchmarks/tests/test_gpu_products.py" in listed
    assert any(path.startswith("methods/tests/") for path in listed)
    assert "tests/training/test_engine.py" not in listed


def test_a_part_that_hangs_is_ended_and_tells_what_it_did(tmp_path: Path) -> None:
    script = (
        "print('tests/a/test_gpu_x.py::test_one[k] PASSED [ 10%]')\n"
        "print('tests/a/test_gpu_x.py::test_two[a, b] FAILED [ 20%]')\n"
        "print('[gw1] [ 50%] PASSED tests/a/test_gpu_x.py::test_four[k, l]@one rank ')\n"
        "print('[gw0] [100%] ERROR tests/a/test_gpu_x.py::test_five ')\n"
        "print('tests/a/test_gpu_x.py::test_three SKIPPED (no such module) [ 30%]', flush=True)\n"
        "import time; time.sleep(60)"
    )
    outcome = run_part(Part("hangs", [sys.executable, "-c", script], 1.5), {}, tmp_path)
    assert outcome.status == "timed out"
    assert outcome.seconds < 30
    assert count_tests(outcome.log) == {
        "passed": 2,
        "failed": ["tests/a/test_gpu_x.py::test_two[a, b]", "tests/a/test_gpu_x.py::test_five"],
        "skipped": {"tests/a/test_gpu_x.py::test_three": "no such module"},
    }
    failed = run_part(Part("fails", [sys.executable, "-c", "1/0"], 30), {}, tmp_path)
    assert failed.facts()["status"] == "failed"
    assert "ZeroDivisionError" in failed.log.read_text()


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", None),
        ("Tesla T4", None),
    ],
)
def test_peaks_of_known_gpus(name: str, tflops: float | None) -> None:
    assert peak_flops(name) == (tflops and tflops * 1e12)


def test_shares_of_the_peak_by_hand() -> None:
    shares = peak_shares({"trainer": [1.0, 2.0, 4.0]}, 98.9e12, "NVIDIA H200")
    assert shares["trainer, share of peak"].value == pytest.approx(0.05)
    assert peak_shares({"trainer": [1.0, 1.0]}, 1.0, "another") == {}


def test_operations_of_a_training_are_three_forward_passes_but_for_the_first_layer() -> None:
    """ResNet-18 at 224 px has 1.8 billion multiply-adds (He et al. 2015, table 1)."""
    flops = training_flops(timm.create_model("resnet18"), 64)
    forward = 2 * 1.814e9 * (64 / 224) ** 2
    assert 2.8 * forward < flops < 3.05 * forward


def test_wheels_that_the_machine_lacks_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wheel(name: str, version: str, *needs: str) -> Path:
        file = tmp_path / f"{name}-{version}-py3-none-any.whl"
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {e}" for e in needs)]
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\n")
        return file

    carried = [
        wheel("absent", "1.0", "old>=2", "fresh>=1", "not-carried; extra == 'more'"),
        wheel("old", "2.0", "chained>=3"),
        wheel("fresh", "9.0"),
        wheel("chained", "3.0"),
    ]
    here = {"old": "1.0", "fresh": "1.5", "chained": "2.9"}
    monkeypatch.setattr(wheels, "_installed", here.get)
    assert [path.name.partition("-")[0] for path in wheels.needed(carried)] == [
        "absent",
        "chained",
        "old",
    ]


def test_every_carried_package_is_locked() -> None:
    versions = wheels.locked(ROOT / "requirements.lock")
    assert set(wheels.CARRIED) <= versions.keys()
    assert not set(wheels.CARRIED) & wheels.SKIPPED.keys()


def test_no_wheels_and_nothing_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wheels.main(["install", str(tmp_path / "none"), str(tmp_path / "site")]) == 0
    assert "no wheels" in capsys.readouterr().out
    assert wheels.main([]) == 2
    assert "fill FOLDER" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
