"""Map nodes of the metadata tree to znodes of ZooKeeper. This module only computes names.

A node of ours may have a value and children at once. Its parents need not exist. Its version begins and ends
with its value. A znode does not allow all of that. A znode cannot exist without its parents, and a parent
that was made only to hold a child looks like a node with an empty value. So each node of ours is up to two
znodes, side by side:

    value of a/b        CHROOT/a/=b        exists exactly while the node exists; its version is the node's
                                           version
    directory of a/b    CHROOT/a/b         exists while something lies below it, and perhaps longer

The znode of a value never has children. A directory has no value of its own. An empty directory may be left
over. It means nothing: a listing checks whether anything lies below. An *ephemeral* node has an ephemeral
directory beside its ephemeral value. Because of this directory, the server itself refuses children of an
ephemeral node, and an ephemeral node above children, in the same transaction.

**Spelling.** A directory has the component's own name, so that a person who walks the tree with a ZooKeeper
shell can read it. If the component begins with ``=`` or ``+``, a ``+`` is put before the name. ZooKeeper's
Java checks names by UTF-16 units and accepts no character beyond U+FFFF. Such a character is spelled as ``^``
and six hexadecimal digits, and so is ``^`` itself (``^00005e``). ``logical`` reverses the spelling of values
and directories.

**Counters** lie below ``CHROOT/+counters``, a name that no directory can have:

    CHROOT/+counters/NAME/GGGGGGGG     generation G of the counter, from 0, in hexadecimal

A slash in the counter's name is also spelled as an escape.
"""

from __future__ import annotations

import re

_VALUE = "="
_QUOTE = "+"
_COUNTERS = "+counters"

_UNUSUAL = re.compile("[\\^\U00010000-\U0010ffff]")
_UNUSUAL_OR_SLASH = re.compile("[/\\^\U00010000-\U0010ffff]")
_ESCAPE = re.compile(r"\^(0[0-9a-f]{5}|10[0-9a-f]{4})")


def _escape(found: re.Match[str]) -> str:
    return f"^{ord(found[0]):06x}"


def _spelled(component: str) -> str:
    return _UNUSUAL.sub(_escape, component)


def _read(spelled: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), spelled)


def _directory_name(component: str) -> str:
    quote = _QUOTE if component[0] in (_VALUE, _QUOTE) else ""
    return quote + _spelled(component)


def parse_child(name: str) -> tuple[str, bool] | None:
    """Read the name of a znode: return its component, and whether the znode is a value (else a directory).

    Return None for all other znodes: a znode that is not ours, or the counters' znode.
    """
    if name.startswith(_VALUE):
        component = _read(name[1:])
        return (component, True) if component and _VALUE + _spelled(component) == name else None
    component = _read(name[1:] if name.startswith(_QUOTE) else name)
    return (component, False) if component and _directory_name(component) == name else None


def beside(directory: str) -> str:
    """Return the znode that holds the value of the node that ``directory`` belongs to."""
    above, _, name = directory.rpartition("/")
    component, _ = parse_child(name) or ("", False)
    assert component
    return f"{above}/{_VALUE}{_spelled(component)}"


class Names:
    """The names of one tree, below ``chroot`` ("" for the root, else "/x/y")."""

    def __init__(self, chroot: str) -> None:
        assert chroot == "" or (chroot.startswith("/") and not chroot.endswith("/"))
        self._chroot = chroot
        self.root = chroot or "/"
        """The znode above everything else in the tree."""
        self.counters = f"{chroot}/{_COUNTERS}"
        """The znode above all counters."""

    def value(self, path: str) -> str:
        """Return the znode that holds the node's value."""
        above, _, last = path.rpartition("/")
        directory = self.directory(above) if above else self._chroot
        return f"{directory}/{_VALUE}{_spelled(last)}"

    def directory(self, path: str) -> str:
        """Return the znode above the node's children."""
        return "/".join((self._chroot, *map(_directory_name, path.split("/"))))

    def directories_above(self, path: str) -> list[str]:
        """Return the directories that must exist before the node's value can exist, outermost first."""
        found = []
        components = self.value(path).split("/")[1:-1]
        for end in range(1, len(components) + 1):
            found.append("/" + "/".join(components[:end]))
        return found

    def parent_directory(self, znode: str) -> str | None:
        """Return the directory of ours that a znode lies in; None if it lies in the root of the tree."""
        above = znode.rpartition("/")[0]
        return above if len(above) > len(self._chroot) else None

    def logical(self, znode: str) -> str | None:
        """Return the path of the node that a znode belongs to; None for a znode that is not ours."""
        if not znode.startswith(self._chroot + "/"):
            return None
        parts = [parse_child(name) for name in znode[len(self._chroot) + 1 :].split("/")]
        components = []
        for index, part in enumerate(parts):
            if part is None or (part[1] and index < len(parts) - 1):
                return None
            components.append(part[0])
        return "/".join(components)

    def counter(self, name: str) -> str:
        """Return the znode above a counter's generations."""
        return f"{self.counters}/{_UNUSUAL_OR_SLASH.sub(_escape, name)}"
