"""Which entry of a box file belongs to which picture: by SHA-256, or else by file name."""

from collections.abc import Iterable, Mapping

from skindx.data.box import BoxedPicture


class BoxIndex:
    """Looks pictures up in what a box file says; a name that two pictures bear finds none."""

    def __init__(
        self, pictures: Mapping[str, BoxedPicture], names: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Take the entries of a box file, and (sha256, file name) of every picture there is."""
        self._by_name = {name: each for name, each in pictures.items() if not each.sha256}
        self._by_sha = {each.sha256: each for each in pictures.values() if each.sha256}
        owner: dict[str, str] = {}
        self.ambiguous: set[str] = set()
        """Names in the file that several different pictures bear."""
        for sha256, name in names:
            if name in pictures and owner.setdefault(name, sha256) != sha256:
                self.ambiguous.add(name)

    def find(self, sha256: str, name: str) -> BoxedPicture | None:
        """Return the entry of a picture, None when the file does not speak of it."""
        if sha256 in self._by_sha:
            return self._by_sha[sha256]
        return None if name in self.ambiguous else self._by_name.get(name)
