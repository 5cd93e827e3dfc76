"""What a plan takes from the settings of a training."""

from skindx.planning.estimate import Machine
from skindx.planning.presets import preset
from skindx.planning.profile import Layer, Profile, Profiles
from skindx.planning.second_order import Kfac
from skindx.training.config.preconditioner import KfacSettings
from skindx.training.config.run import TrainSettings
from skindx.training.planning.of_config import given_choice, kfac_of


def test_a_preconditioner_is_taken_with_all_that_costs_time() -> None:
    assert kfac_of(None) is None
    assert kfac_of(KfacSettings()) == Kfac()
    own = KfacSettings(
        factors_every=5,
        inverses_every=50,
        widest=2000,
        gradient_workers=0.5,
        fisher="empirical",
    )
    assert kfac_of(own) == Kfac(5, 50, 2000, 0.5, sampled=False)


def test_settings_without_split_layers_are_given_as_their_exchange() -> None:
    settings = TrainSettings.parse(
        {
            "members": [{"name": "m", "model": "resnet18"}],
            "recipe": {"batch": 32},
            "exchange": {"kind": "fused", "wire": "bf16"},
            "engine": {"ranks": 2},
        }
    )
    layer = Layer(name="a", forward_s=1, backward_s=2, parameter_bytes=4)
    machine = Machine(
        Profiles(networks=(Profile(name="resnet18", layers=(layer,)),)), preset("memory:2")
    )
    found = given_choice(settings, machine)
    assert found
    assert (found.strategy.name, found.strategy.options) == ("fused", {"wire": "bf16"})
    assert (found.ranks, found.batch, found.strategy.executed) == (2, 32, True)
