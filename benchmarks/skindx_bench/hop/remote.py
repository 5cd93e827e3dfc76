"""States that cross the links of the emulated cluster."""

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skindx.training.hopping.member_visits import States
from skindx.workers import messages
from skindx_bench.hop.storage import PORT


class RemoteStates(States):
    """States in a folder of this rank alone, which are sent to the storage and fetched from it."""

    def __init__(self, run: Path, own: Path, address: str) -> None:
        """Keep copies in the folder `own`."""
        super().__init__(run)
        self._own, self._address = own, address

    def folder(self, member: str) -> Path:
        """Return where this rank has the states of a member."""
        return self._own / self.run.name / member

    def fetch(self, member: str, name: str) -> Path:
        """Return a state after it came over the link, unless this rank wrote it itself."""
        folder = self.path(member, name)
        if not folder.is_dir():
            for part, data in self._ask("get", member, name)["files"].items():
                file = folder / part
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        return folder

    def publish(self, member: str, name: str) -> None:
        """Send a state over the link."""
        folder = self.path(member, name)
        files = {
            str(file.relative_to(folder)): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        self._ask("put", member, name, files=files)

    def names(self, member: str) -> list[str]:
        """Return the names of a member's states here and there."""
        there: list[str] = self._ask("names", member, "")["names"]
        return sorted({*there, *super().names(member)})

    def forget(self, member: str, names: Iterable[str]) -> None:
        """Remove states here and there."""
        gone = list(names)
        super().forget(member, gone)
        self._ask("drop", member, "", names=gone)

    def remove(self, member: str) -> None:
        """Remove all states of a member here and there."""
        self._ask("drop", member, "", names=self.names(member))
        super().remove(member)

    def _ask(self, do: str, member: str, name: str, **more: Any) -> Any:
        of = f"{self.run.name}/{member}"
        with socket.create_connection((self._address, PORT), timeout=300) as connection:
            connection.sendall(messages.pack({"do": do, "of": of, "name": name, **more}))
            with connection.makefile("rb") as stream:
                return messages.receive(stream.read)
