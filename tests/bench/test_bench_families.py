"""The bench over timm's families at its smallest setting, and a network that never ends."""

from pathlib import Path

import pytest
import timm

from skindx_bench.subjects import run_bench
from skindx_bench.train.families import MODELS, STAGES, Config, try_apart


@pytest.mark.lab
def test_a_small_network_passes_each_stage(tmp_path: Path) -> None:
    result = run_bench("families", tmp_path / "families.json", smallest=True)
    assert result.models == {"test_resnet": dict.fromkeys(STAGES, "yes")}
    # One network that can do everything says little about the others.
    assert result.figures["step"].spread == pytest.approx((2.5, 100))
    assert (tmp_path / "families.json").is_file()


def test_what_takes_too_long_is_ended_and_an_unknown_name_is_a_row() -> None:
    row = try_apart("test_resnet", Config(limit_s=0.001))
    assert row["build"] == "no: over 0.001 s"
    assert set(list(row.values())[1:]) == {"not reached"}
    assert try_apart("resnet181", Config(limit_s=120))["build"].startswith("no: timm has no model")


def test_the_list_holds_sixty_networks_that_timm_knows() -> None:
    assert len(set(MODELS)) == len(MODELS) >= 60
    assert [model for model in MODELS if not timm.is_model(model)] == []
