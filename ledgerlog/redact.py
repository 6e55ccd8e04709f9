"""Keeping passwords out of what people read: the one place that knows what in a URI is a secret.

Every exception of ours passes its text through ``redact``, whoever raises it, and so do log lines and reprs
that name a place. What counts as a secret:

    SCHEME://USER:PASSWORD@HOST    all before the last @ of the user part, the user included: it may be a key
    ?secret=..., &token=...        the value of each parameter whose name tells that it is one

It errs on the side of hiding: in ``s3://bucket/a:b@c`` it hides ``bucket/a:b``. A path without a host
(``file:/data/a:b@c``) holds no password and stays."""

from __future__ import annotations

import re

__all__ = ["redact"]

_HIDDEN = "***"

# From :// to the last @ before a blank or a quote: a password may hold a slash or an @, and often does. It is
# a user part if an @ comes before the first slash, or if it holds a colon. A third slash begins a path.
_USER = re.compile(r"(?<=://)(?!/)(?:[^\s'\"/@]+@(?:[^\s'\"]*@)?|[^\s'\"]*:[^\s'\"]*@)")

_NAMES = "pass|pwd|secret|token|auth|key|cred|sig|sas|digest"
_VALUE = re.compile(rf"([?&;][^=&;\s'\"?]*(?:{_NAMES})[^=&;\s'\"]*=)[^&;\s'\"]*", re.IGNORECASE)


def redact(text: str) -> str:
    """``text``, a URI or a sentence that holds some, with ``***`` in place of each secret."""
    if "://" in text:
        text = _USER.sub(f"{_HIDDEN}@", text)
    if "=" in text:
        text = _VALUE.sub(rf"\g<1>{_HIDDEN}", text)
    return text
