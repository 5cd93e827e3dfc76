"""DICOM photographs as a source: a folder, a DICOMDIR, or a DICOMweb server (a PACS).

What is kept of a file are its pixels and the facts of the manifest. Patient and study become codes
under a key (HMAC), which lies outside the dataset; names, dates and UIDs are dropped.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from skindx.core.atomic_files import private_folder
from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.text import counted
from skindx.data.layout import is_inside
from skindx.data.ledger import FROM, LedgerRow, held_ledger, open_ledger, read_lines, row_of
from skindx.data.origin import Modality
from skindx.data.placeholders import is_nobody
from skindx.data.sources.columns import Columns, confirmation
from skindx.data.sources.dicomweb import DicomWebClient, DicomWebError, DicomWebServer
from skindx.data.sources.folder import FolderFile, FolderWalk, look_at
from skindx.data.sources.image_source import NO_LABEL, LocalSource, SourcePreview
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import TableFields, TableLog, check_sure
from skindx.data.tables.reader import read_table
from skindx.imaging.dicom_facts import Description, named_key, pseudonym, read_key
from skindx.imaging.image_formats import HEAD, DamagedImage
from skindx.workers.sandbox import Failure, run_sandboxed

if TYPE_CHECKING:  # numpy: not for a crawl, which reads recipes
    from skindx.imaging.dicom import ImportedPhoto

Identifier = Literal[
    "PatientID", "AccessionNumber", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"
]
_FIELDS: dict[Identifier, str] = {
    "PatientID": "patient_id",
    "AccessionNumber": "accession_number",
    "StudyInstanceUID": "study_uid",
    "SeriesInstanceUID": "series_uid",
    "SOPInstanceUID": "instance_uid",
}
_KINDS: dict[str, Modality] = {"photograph": "clinical", "dermoscopy": "dermoscopic"}
_CHUNK = 512
"""Files whose images are written before they go into the store."""
_BATCH = 16
"""Files of a server that are decoded together; a kill costs no more than these."""
_MOST_FAILURES = 20
"""Images in a row that a server may fail to give before it is left alone."""
_STRANGERS = {
    "study_uid": ("another-study", "an image of another study"),
    "patient_id": ("another-patient", "an image of another patient"),
    "instance_uid": ("another-image", "another image"),
}
"""What a server may not answer with, most telling first."""
_BURNED_IN = (
    "it says that text, which may name the patient, is part of its pixels; look at it, and set "
    "burned_in: keep if it names nobody"
)

_IGNORED = "its colour profile is damaged or of other colours, and was ignored"


class LabelColumns(Columns):
    """Columns of a table of labels; `key` holds the identifier."""

    key: str = Field("key", min_length=1)


class DicomLabels(TableFields):
    """A table that knows what the images of a study or patient show."""

    path: Path
    identifier: Identifier = "AccessionNumber"
    """What of an image stands in the column `key`."""
    columns: LabelColumns = LabelColumns()

    _notes: list[str] = PrivateAttr(default_factory=list)

    def read(self) -> dict[str, tuple[str, str]]:
        """Return (label, how it was confirmed) by identifier. Raises UserError.

        One of two labels has none of them, or is refused.
        """
        log = TableLog()
        labels: dict[str, list[str]] = {}
        known: dict[str, tuple[str, str]] = {}
        for line in read_table(self.path, self.columns, self, log):
            key, label = cell(line.get(self.columns.key)), cell(line.get(self.columns.label))
            labels.setdefault(key, []).append(label)
            confirmed = confirmation(cell(line.get(self.columns.confirmed)))
            known[key] = label, known.get(key, ("", ""))[1] or confirmed
        torn = check_sure(self.path, labels, "label", self, "leaves it unlabelled")
        self._notes = log.all_notes(self.path)
        if torn:
            several = f"{counted(len(torn), self.identifier)} with several labels"
            self._notes.append(f"{self.path}: {several}, such as {min(torn)}, have none.")
        return known | dict.fromkeys(torn, ("", ""))


class DicomSource(LocalSource):
    """DICOM files of photographs and dermoscopy (VL Photographic, Dermoscopic Photography).

    The label is that of `labels`, or the attribute `label`, or in a folder the class folder.
    """

    kind: Literal["dicom"]
    path: Path | None = None
    """A folder, all of whose files are read, or a DICOMDIR, of which those that it lists are."""
    server: DicomWebServer | None = None
    label: Description | Literal[""] = ""
    """The attribute that names the class."""
    labels: DicomLabels | None = None
    key: Path | None = None
    """File with the key of pseudonyms; null: that of SKINDX_DICOM_KEY, else one beside the dataset.

    The same key joins the images of a patient over datasets."""
    identifiers: Literal["pseudonyms", "kept"] = "pseudonyms"
    """kept: the dataset has the ids of patient, study and image as they are."""
    burned_in: Literal["refuse", "keep"] = "refuse"
    """Images whose file says that text, such as a name, is part of the pixels."""
    origin: str = ""
    """Which clinic or archive it is, where several sources are; it is published."""
    licence: str = ""
    creator: str = ""
    attribution: str = ""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.path) == bool(self.server):
            raise ValueError("give either `path` (a folder or a DICOMDIR) or `server`")
        if self.server and not (self.label or self.labels):
            raise ValueError(
                "a DICOM server has no class folders; set `label` (a keyword) or `labels` (a table)"
            )
        return self

    @property
    def name(self) -> str:
        """One name for all DICOM sources: a folder's or a server's name stays private.

        So a patient's images are one group, whichever DICOM source they come from.
        """
        return f"dicom{FROM}{self.origin}" if self.origin else "dicom"

    @property
    def folder(self) -> Path | None:
        """The folder; None for a DICOMDIR or a server."""
        return self.path if self.path and self.path.is_dir() else None

    def hosts(self) -> Collection[str]:
        return [self.server.host] if self.server else ()

    def preview(self) -> SourcePreview:
        """Return the labels of the table or of the class folders. Raises UserError."""
        self._check()
        if self.labels:
            labels = [label for label, _ in self.labels.read().values() if label]
            return SourcePreview(labels, self.labels._notes)
        if self.label or self.folder is None:
            return SourcePreview(())
        return SourcePreview([file.label for file in self._files() if file.path])

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Read the images into the store; return one row an image. Raises UserError."""
        return self.gather_slowly(dataset, lambda: None)

    def gather_slowly(self, dataset: Path, on_image: Callable[[], None]) -> list[LedgerRow]:
        """Do so, and call `on_image` at each image."""
        self._check()
        key_file = self.key or named_key() or dataset.with_name(f"{dataset.name}.dicom-key")
        if key_file.exists():
            read_key(key_file)
        table = self.labels.read() if self.labels else {}
        with private_folder("skindx-dicom-") as staging:
            importer = DicomImporter(self, dataset, staging, key_file, table, on_image)
            rows = importer.of_server() if self.server else importer.of_files(self._files())
        if not rows:
            where = self.server.host if self.server else self.path
            raise UserError(f"{where} has no DICOM photographs; give another folder or study.")
        return rows

    def _check(self) -> None:
        from skindx.imaging.dicom import require_dicom

        require_dicom()
        if self.path and not self.path.exists():
            raise UserError(f"{self.path} does not exist; set `path` to a folder or a DICOMDIR.")
        if self.server:
            self.server.authorization()

    def _files(self) -> Iterator["DicomFile"]:
        assert self.path
        if self.path.is_dir():
            yield from folder_files(self.path, class_folders=not (self.label or self.labels))
        else:
            yield from listed_files(self.path)


@dataclass(frozen=True, slots=True)
class DicomFile:
    """A file to read; without `path` there is none, and `refusal` says why."""

    path: Path | None
    shown: str
    """Name in the ledger as long as its ids are not known."""
    label: str = ""
    refusal: tuple[str, str] = ("", "")
    requested: Mapping[str, str] = field(default_factory=dict)
    """Ids asked of a server, by field of `DicomIdentity`."""


def folder_files(root: Path, *, class_folders: bool) -> Iterator[DicomFile]:
    """Yield all files of a folder but indexes; their first folder is the label if asked for."""
    for file in FolderWalk(root.resolve()).files(root, ""):
        relative = PurePosixPath(file.path.relative_to(root).as_posix())
        label = relative.parts[0] if class_folders and len(relative.parts) > 1 else ""
        if relative.name != "DICOMDIR":
            yield _looked_at(file, str(relative), label)


def listed_files(index: Path) -> Iterator[DicomFile]:
    """Yield the image files that a DICOMDIR lists. Raises UserError for what is none."""
    from skindx.imaging.dicom import LIMITS, dicomdir_listing

    ((_, listed),) = run_sandboxed(dicomdir_listing, {}, [index], LIMITS, workers=1)
    if isinstance(listed, Failure | str):
        why = listed if isinstance(listed, str) else listed.detail
        raise UserError(f"{index} is not a DICOMDIR ({why}); set `path` to a DICOMDIR or a folder.")
    root = index.parent.resolve()
    for parts in listed:
        shown = "/".join(parts)
        path = root.joinpath(*parts)
        if is_inside(shown) and path.resolve().is_relative_to(root):
            yield _looked_at(look_at(path, "", root), shown)
        else:
            refusal = ("link-refused", "the DICOMDIR names a file outside its folder")
            yield DicomFile(None, shown[:200], refusal=refusal)


def _looked_at(file: FolderFile, shown: str, label: str = "") -> DicomFile:
    if file.status in ("link-refused", "unreadable", "too-large"):
        return DicomFile(None, shown, label, (file.status, file.detail))
    with file.path.open("rb") as opened:
        if opened.read(HEAD)[128:132] == b"DICM":
            return DicomFile(file.path, shown, label)
    return DicomFile(None, shown, label, ("not-dicom", "it is no DICOM file"))


@dataclass
class DicomImporter:
    """Makes rows of the files of one source."""

    source: DicomSource
    dataset: Path
    staging: Path
    key_file: Path
    table: Mapping[str, tuple[str, str]]
    on_image: Callable[[], None]
    _kept: dict[str, LedgerRow] = field(default_factory=dict)
    _fetched: int = 0
    _in_vain: int = 0

    @cached_property
    def _key(self) -> bytes:
        # Made for the first id, so that a source that gives nothing leaves no file.
        return read_key(self.key_file, create=True)

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self.source, name) for name in ("licence", "creator", "attribution")}

    def of_files(self, files: Iterable[DicomFile]) -> list[LedgerRow]:
        """Return a row a file, in the order of `files`."""
        from skindx.imaging.dicom import import_photos

        every = list({file.path or file.shown: file for file in files}.values())
        rows = [self._refused(file, *file.refusal) for file in every]
        there = [at for at, file in enumerate(every) if file.path]
        for low in range(0, len(there), _CHUNK):
            chunk = there[low : low + _CHUNK]
            with TemporaryDirectory(dir=self.staging) as folder:
                paths = [path for at in chunk if (path := every[at].path)]
                workers = min(cpu_count(), -(-len(paths) // _BATCH))
                for place, photo in import_photos(paths, Path(folder), workers=workers):
                    rows[chunk[place]] = self._row(every[chunk[place]], photo)
                    self.on_image()
        return rows

    def _refused(self, file: DicomFile, status: str, detail: str) -> LedgerRow:
        return self.source.stored(
            self.dataset, file.shown, file.label, b"", status=status, detail=detail
        )

    def _row(self, file: DicomFile, photo: "ImportedPhoto | DamagedImage") -> LedgerRow:
        """Return the row of a file by what its reading gave; its image goes into the store."""
        if isinstance(photo, DamagedImage):
            return self._refused(file, photo.reason, str(photo))
        source, facts = self.source, photo.facts
        identity = asdict(facts.identity)
        for name, (status, what) in _STRANGERS.items():
            if file.requested.get(name) and file.requested[name] != identity[name]:
                detail = f"the server gave {what} than the one asked for; tell its administrator"
                return replace(self._refused(file, status, detail), retrieved="")
        patient, study, shown = self.codes(identity)
        nobody = identity["patient_id"] if is_nobody(identity["patient_id"]) else ""  # is counted
        label, confirmed_by = self.label_of({**identity, **file.requested})
        label = label or facts.descriptions.get(source.label, "") or file.label
        ignored = _IGNORED if "profile-ignored" in photo.notes else ""
        status, detail = ("stored", ignored) if label else NO_LABEL
        if facts.burned_in and source.burned_in == "refuse":
            status, detail = "burned-in-text", _BURNED_IN
        return source.stored(
            self.dataset,
            shown,
            label,
            photo.file.read_bytes(),
            status=status,
            detail=detail,
            confirmed_by=confirmed_by,
            age=None if facts.age is None else float(facts.age),
            sex=facts.sex,
            site=facts.site or facts.region.casefold(),
            laterality=facts.laterality,
            modality=source.modality or _KINDS.get(facts.kind, ""),
            patient=patient,
            study=study,
            group=f"{nobody}\n{study or shown}" if nobody else patient or study or shown,
            **self._given(),
        )

    def codes(self, identity: Mapping[str, str]) -> tuple[str, str, str]:
        """Return what stands for patient, study and image; "" of an id that is not known."""
        ids = [identity.get(name, "") for name in ("patient_id", "study_uid", "instance_uid")]
        patient, study, image = ids
        patient = "" if is_nobody(patient) else patient
        if self.source.identifiers == "pseudonyms":
            patient = pseudonym(self._key, "patient", patient)
            study = pseudonym(self._key, "study", study)
            image = pseudonym(self._key, "image", image)
        return patient, study, f"dicom:{image}"

    def label_of(self, identity: Mapping[str, str]) -> tuple[str, str]:
        """Return what the table says of an image, and how it was confirmed."""
        if self.source.labels is None:
            return "", ""
        return self.table.get(identity[_FIELDS[self.source.labels.identifier]], ("", ""))

    def of_server(self) -> list[LedgerRow]:
        """Fetch what the ledger does not hold yet; return a row an image. Raises UserError."""
        source, server = self.source, self.source.server
        assert server
        decisive = (source.label, source.modality, source.identifiers, source.burned_in)
        mark = hashlib.sha256(json.dumps([server.url, *decisive]).encode()).hexdigest()[:16]
        rows: list[LedgerRow] = []
        waiting: list[DicomFile] = []
        with held_ledger(self.dataset), open_ledger(self.dataset) as ledger:
            self._kept = self._known(mark)
            ledger.note("dicom", recipe=mark)

            def read() -> None:
                new = self.of_files(waiting)
                for file in waiting:
                    assert file.path
                    file.path.unlink()
                waiting.clear()
                ledger.extend(new)
                rows.extend(new)

            try:
                with DicomWebClient(server) as client:
                    for item in self._images(client):
                        if isinstance(item, DicomFile):
                            waiting.append(item)
                        else:
                            self.on_image()
                            rows.append(item)
                            ledger.append(item, force=False)
                        if len(waiting) == _BATCH:
                            read()
                read()
            except DicomWebError as error:
                raise UserError(
                    f"{error.detail}; correct the settings below `server` or the server itself, "
                    "and run the same command again, which keeps the files fetched so far."
                ) from None
        return sorted(rows, key=lambda row: row.url)

    def _images(self, client: DicomWebClient) -> Iterator[LedgerRow | DicomFile]:
        """Yield the images of all matching studies: those to read, and rows of the others.

        Raises DicomWebError where going on makes no sense.
        """
        for study in client.studies():
            try:
                for image in client.images(study):
                    yield self._image(client, image)
            except DicomWebError as error:
                yield self._failed(error, self.codes(study)[1])

    def _image(self, client: DicomWebClient, requested: Mapping[str, str]) -> LedgerRow | DicomFile:
        """Fetch an image, unless the ledger or the table of labels makes that needless."""
        shown = self.codes(requested)[2]
        label, confirmed_by = self.label_of(requested)
        if self.source.labels and not label:
            return self._refused(DicomFile(None, shown), *NO_LABEL)
        if row := self._kept.get(shown):
            return replace(
                row, label=label or row.label, confirmed_by=confirmed_by, **self._given()
            )
        try:
            data = client.instance(requested)
        except DicomWebError as error:
            return self._failed(error, shown)
        self._in_vain = 0
        self._fetched += 1
        path = self.staging / f"{self._fetched}.dcm"
        path.write_bytes(data)
        return DicomFile(path, shown, label, requested=requested)

    def _failed(self, error: DicomWebError, shown: str) -> LedgerRow:
        """Return the row of what a server did not give. Raises DicomWebError after too many."""
        self._in_vain += 1
        if error.hopeless or self._in_vain >= _MOST_FAILURES:
            raise error
        return replace(
            self._refused(DicomFile(None, shown), error.status, error.detail), retrieved=""
        )

    def _known(self, mark: str) -> dict[str, LedgerRow]:
        """Return the final rows of earlier runs with the same `mark`, by URL."""
        rows: dict[str, LedgerRow] = {}
        ours = False
        for line in read_lines(self.dataset)[0]:
            row = row_of(line)
            if row is None:
                ours = line.get("recipe") == mark if line["note"] == "dicom" else ours
            elif ours and row.source == self.source.name:
                rows[row.url] = row
        return {
            url: row
            for url, row in rows.items()
            if row.retrieved and (not row.path or (self.dataset / row.path).is_file())
        }
