"""The file with this process's secrets (``model.secret``): reading it, watching it for changes, making and
replacing it.

Only the owner of the file may have access to it, and the owner must be this user or root. A file that others
can read is refused: anyone who knows a cluster's secret can act as any principal.

When a secret is needed, ``SecretFile`` checks whether the file has changed, at most once in ``_LOOK_S``. So a
new file is used by the next connection, without a signal; open connections continue. ``reload`` reads the
file at once; ``bookie run`` calls it on SIGHUP. If the new file is bad, or has another holder (the principal
whose secret it is), the process keeps the secrets that it has, and logs one warning for each state of the
file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.secret import SECRET_BYTES, SECRET_FILE_BYTES_MAX, Secrets

__all__ = [
    "SecretFile",
    "ensure_secret_file",
    "exists",
    "make_secret_file",
    "new_secret",
    "read_secret_file",
    "replace_secret_file",
]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


def exists(path: str) -> bool:
    """Return whether there is anything at ``path``: a file, a directory or a link."""
    return os.path.lexists(path)


def new_secret() -> bytes:
    """Return a new random secret."""
    return os.urandom(SECRET_BYTES)


def read_secret_file(path: str) -> Secrets:
    """Read a secret file.

    Raises:
        InvalidArgument: The file cannot be read, belongs to another user, can be used by others, or is not a
            secret file. The message names the file and holds no secret.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as cause:
        raise InvalidArgument(f"the secret file {path} cannot be read: {cause.strerror}") from cause
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"the secret file {path} is not a file")
        if status.st_uid not in (os.geteuid(), 0):
            raise InvalidArgument(f"the secret file {path} belongs to another user, who could change it")
        if status.st_mode & 0o077:
            raise InvalidArgument(
                f"other users can access the secret file {path} (mode {stat.S_IMODE(status.st_mode):04o}): "
                f"'chmod 600 {path}', and change the secret if another user may have read it"
            )
        data = os.read(descriptor, SECRET_FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise InvalidArgument(f"the secret file {path} cannot be read: {cause.strerror}") from cause
    finally:
        os.close(descriptor)
    if len(data) > SECRET_FILE_BYTES_MAX:
        raise InvalidArgument(f"{path} is not a secret file: it has more than {SECRET_FILE_BYTES_MAX} bytes")
    return Secrets.parse(data.decode("utf-8", "replace"), path)


def ensure_secret_file(path: str) -> str:
    """Make a file with a new cluster's secret, unless there is a file already. Return the absolute path of
    the file.

    Any number of processes may do this at the same time; one of them makes the file.

    Raises:
        InvalidArgument: The existing file cannot be used, or the file cannot be made.
    """
    if not exists(path):
        try:
            make_secret_file(path, Secrets(None, (new_secret(),)))
        except InvalidArgument as failure:
            if not isinstance(failure.__cause__, FileExistsError):
                raise
    read_secret_file(path)
    return os.path.abspath(path)


def make_secret_file(path: str, secrets: Secrets) -> None:
    """Make a file that only this user may read. If this fails, no part of the file is left.

    Raises:
        InvalidArgument: There is something at ``path`` already, or the file cannot be made.
    """
    _write(path, secrets, may_replace=False)


def replace_secret_file(path: str, secrets: Secrets) -> None:
    """Replace a file in one step: a reader sees either the former content or the new one.

    Raises:
        InvalidArgument: The file cannot be written.
    """
    _write(path, secrets, may_replace=True)


def _write(path: str, secrets: Secrets, *, may_replace: bool) -> None:
    temporary = f"{path}.{os.urandom(4).hex()}.new"
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.write(descriptor, secrets.encode().encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if may_replace:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
            directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as cause:
        raise InvalidArgument(f"the secret file {path} cannot be made: {cause.strerror}") from cause


_Stamp = tuple[int, int, int, int, int] | None


def _stamp_of(path: str) -> _Stamp:
    """Return something that changes when the file changes. Take it before you read the file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class SecretFile:
    """A secret file, and the secrets that were last read from it."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            InvalidArgument: As for ``read_secret_file``.
        """
        self._path = path
        self._stamp = _stamp_of(path)
        self._secrets = read_secret_file(path)
        self._look_at = time.monotonic() + _LOOK_S

    @property
    def where(self) -> str:
        """The path of the file."""
        return self._path

    def current(self) -> Secrets:
        """Return the present secrets."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            stamp = _stamp_of(self._path)
            if stamp != self._stamp:
                self.reload()
        return self._secrets

    def reload(self) -> None:
        """Read the file now, whether it has changed or not. If the file is bad, keep the present secrets."""
        self._look_at = time.monotonic() + _LOOK_S
        self._stamp = _stamp_of(self._path)
        if self._read_again():
            logger.info("the secret file was read again: %r", self._secrets)

    def _read_again(self) -> bool:
        """Read the file. Return False, after a warning, if it cannot be used."""
        try:
            secrets = read_secret_file(self._path)
            if secrets.holder != self._secrets.holder:
                raise InvalidArgument(
                    f"{self._path} now holds {secrets!r}, but this process has {self._secrets!r}"
                )
        except InvalidArgument as bad:
            logger.warning("the secrets stay as they were: %s", bad)
            return False
        self._secrets = secrets
        return True
