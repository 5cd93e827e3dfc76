"""An answer that goes to the browser, sealed, and comes back unchanged for its PDF report.

The server keeps no answer. So what a report is made of lies in the page, with a seal (HMAC-SHA256,
RFC 2104) under a key that this process alone has: nobody can have another answer printed as one of
this server's.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import datetime
from io import BytesIO
from typing import Any

from skindx.core.errors import UserError
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.report_making import made_pdf
from skindx.workers import framing

SEALED_BYTES = 32 << 20
"""More than a sealed answer has: three photos of 1280 pixels with heat maps, in base64."""
_TAG_BYTES = hashlib.sha256().digest_size
_BROKEN = (
    "this answer is not one that the server gave since it was started, so there is no report on "
    "it; look at the photos again."
)
_OTHERS = "this answer was given to another user; look at the photos again."


class Reports:
    """Seals answers, and makes the reports on those that come back; `metrics` are the bundle's."""

    def __init__(self, metrics: dict[str, Any] | None) -> None:
        self._metrics, self._key = metrics, secrets.token_bytes(32)

    def sealed(self, answer: CaseAnswer, when: datetime, user: str) -> str:
        """Return an answer given at `when` to `user` ("" without logins) as base64 with a seal."""
        plain = framing.plain(answer)
        packed = framing.pack({"user": user, "when": when.isoformat(), "answer": plain})
        return base64.b64encode(self._tag(packed) + packed).decode()

    def pdf(self, sealed: bytes, user: str) -> bytes:
        """Return the report on a sealed answer; the same answer gives the same bytes.

        Raises UserError for anything else, for another user's answer, and without fpdf2.
        """
        try:
            data = base64.b64decode(sealed, validate=True)
        except ValueError:
            raise UserError(_BROKEN) from None
        tag, packed = data[:_TAG_BYTES], data[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(packed)):  # before anything of it is parsed
            raise UserError(_BROKEN)
        message = framing.receive(BytesIO(packed).read)
        if message["user"] != user:
            raise UserError(_OTHERS)
        answer = framing.rebuilt(CaseAnswer, message["answer"])
        return made_pdf(answer, self._metrics, datetime.fromisoformat(message["when"]))

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")
