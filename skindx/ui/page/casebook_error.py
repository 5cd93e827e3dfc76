"""What a person reads of an error of the case book."""

import logging

from skindx.casebook.key_file import KeyFileError
from skindx.core.errors import UserError

log = logging.getLogger(__name__)


def casebook_error(error: UserError) -> str:
    """Return what a person reads of an error; where files lie is for the log."""
    if not isinstance(error, KeyFileError):
        return str(error)
    log.error("%s", error)
    return "the key file of the case book cannot be used; tell the operator of this page."
