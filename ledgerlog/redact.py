"""Keep passwords out of messages. Only this module knows which parts of a URI are secret.

Every exception of ledgerlog passes its text through ``redact``. So do log lines and reprs that may hold a
URI. These parts count as secret:

    SCHEME://USER:PASSWORD@HOST    everything before the last @ of the user part; the user may be a key, too
    ?secret=..., &token=...        the value of each parameter whose name says that it is a secret

If in doubt, ``redact`` hides a part: in ``s3://bucket/a:b@c`` it hides ``bucket/a:b``. A path without a host
(``file:/data/a:b@c``) holds no password and stays as it is.
"""

from __future__ import annotations

import re

__all__ = ["has_secret", "redact"]

_HIDDEN = "***"

# The user part goes from :// to the last @ before a blank or a quote, because a password often holds a slash
# or an @. The text before that @ is a user part if an @ comes before the first slash, or if it holds a colon.
# A third slash begins a path: ``file:///x`` has no user part.
_USER = re.compile(r"(?<=://)(?!/)(?:[^\s'\"/@]+@(?:[^\s'\"]*@)?|[^\s'\"]*:[^\s'\"]*@)")

_NAMES = "pass|pwd|secret|token|auth|key|cred|sig|sas|digest"
_VALUE = re.compile(rf"([?&;][^=&;\s'\"?]*(?:{_NAMES})[^=&;\s'\"]*=)[^&;\s'\"]*", re.IGNORECASE)


def redact(text: str) -> str:
    """Replace each secret in ``text``, a URI or a sentence that holds URIs, by ``***``."""
    if "://" in text:
        text = _USER.sub(f"{_HIDDEN}@", text)
    if "=" in text:
        text = _VALUE.sub(rf"\g<1>{_HIDDEN}", text)
    return text


_PLAIN_NAMES = frozenset(("credential_kind", "blob_storage_authority", "dfs_storage_authority"))
"""Options of pyarrow's URLs that hold no secret, although their names look like secrets."""


def has_secret(uri: str) -> bool:
    """Whether a URI holds a password, or a parameter whose name says that it is a secret.

    The name of a user alone is not a secret. If in doubt, the answer is yes.
    """
    return any(":" in user[0] for user in _USER.finditer(uri)) or any(
        found[1][1:-1].lower() not in _PLAIN_NAMES for found in _VALUE.finditer(uri)
    )
