"""A unit whose lease went to another worker is dropped: nothing of it is saved any more."""

from collections.abc import Callable

from skindx.training.hopping.visits import UnitStoppedError
from skindx.training.launching.stopping import Stop


class LeasedStop:
    """A request to stop, for a unit that is dropped at once when its lease is another's."""

    def __init__(self, stop: Stop, lost: Callable[[], bool]) -> None:
        self._stop, self._lost = stop, lost

    @property
    def asked(self) -> bool:
        """Raises UnitStoppedError when the lease is lost: nothing of the unit may be saved."""
        if self._lost():
            raise UnitStoppedError
        return self._stop.asked

    def done(self) -> None:
        """All is saved."""
        self._stop.done()
