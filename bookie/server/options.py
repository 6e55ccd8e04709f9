"""The configuration file of ``bookie run --config``: TOML, one key for each option of the storage engine.

The file is flat: ``name = value``, with the names and units of ``StorageConfig``. If a key does not exist, a
value has another type, or the engine refuses it, InvalidArgument names the file, the key and the right form.
So a bookie never ignores a setting that its operator wrote into the file.

``frame_bytes_max`` must not be below the largest frame of the protocol. Otherwise other bookies could hold
entries that this bookie always refuses, and recovery, repair and backfill could not copy them to this bookie.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import attrs

from bookie.storage.engine.config import LARGEST_FRAME_BYTES, StorageConfig
from ledgerlog.errors import InvalidArgument


def read_config(path: str) -> StorageConfig:
    """Read the engine's configuration from a TOML file.

    Raises:
        InvalidArgument: The file cannot be read, is not TOML, or has a wrong key or value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as cause:
        raise InvalidArgument(f"config {path}: {cause.strerror}") from cause
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise InvalidArgument(f"config {path}: not TOML: {cause}") from cause
    return parse_config(values, path)


def parse_config(values: dict[str, Any], path: str) -> StorageConfig:
    """Make the configuration from the file's values. ``path`` is for messages."""
    kinds = get_type_hints(StorageConfig)
    known = [field.name for field in attrs.fields(StorageConfig) if field.init]
    for name, value in values.items():
        if name not in known:
            raise InvalidArgument(
                f"config {path}: there is no option {name!r}; the options are {', '.join(known)}"
            )
        kind = kinds[name]
        if kind is float and type(value) is int:
            values = {**values, name: float(value)}
        elif type(value) is not kind:
            raise InvalidArgument(
                f"config {path}: {name} must be {kind.__name__}, not {type(value).__name__} ({value!r})"
            )
    try:
        config = StorageConfig(**values)
    except (ValueError, TypeError) as cause:
        raise InvalidArgument(f"config {path}: {cause}") from cause
    if config.frame_bytes_max < LARGEST_FRAME_BYTES:
        raise InvalidArgument(
            f"config {path}: frame_bytes_max is {config.frame_bytes_max}, but must be at least "
            f"{LARGEST_FRAME_BYTES}: a bookie must accept every entry that other bookies hold. Leave the "
            f"option out"
        )
    return config
