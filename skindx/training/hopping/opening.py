"""The database of a run's leases; nothing here loads torch."""

import os
import secrets
from pathlib import Path

from skindx.training.checkpoint.names import CHECKPOINTS
from skindx.training.config.engine import EngineSettings
from skindx.training.hopping.files import DATABASE, NAME
from skindx.workers.leases.queue import Queue


def open_queue(run: Path, engine: EngineSettings) -> Queue:
    """Open a run's queue. Raises UserError for a database that cannot be used."""
    folder = run / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    where = engine.leases or folder / DATABASE
    return Queue(where, _name(folder / NAME))


def _name(file: Path) -> str:
    """Return the run's name among others, which the first worker of any machine writes."""
    if not file.exists():
        own = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        own.write_text(secrets.token_hex(16), encoding="ascii")
        try:
            os.link(own, file)
        except FileExistsError:
            pass
        finally:
            own.unlink()
    return file.read_text(encoding="ascii")
