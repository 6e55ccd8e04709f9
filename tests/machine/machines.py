"""State machines for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ledgerlog.machine.machine import StateMachine
from ledgerlog.model.command import Command


class Keys(StateMachine):
    """Registers by key: commands are JSON lists, ``["set", key, value]``, ``["add", key, n]``,
    ``["cas", key, old, new]`` and ``["get", key]``."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.applied = 0

    def apply(self, command: Command) -> bytes | None:
        verb, key, *arguments = json.loads(command.data)
        self.applied += 1
        value = self.values.get(key)
        match verb:
            case "set":
                self.values[key] = arguments[0]
            case "add":
                self.values[key] = (value or 0) + arguments[0]
                return json.dumps(self.values[key]).encode()
            case "cas":
                if value != arguments[0]:
                    raise ValueError(f"{key} is {value!r}")
                self.values[key] = arguments[1]
            case "get":
                return json.dumps(value).encode()
            case _:
                raise KeyError(verb)
        return None

    def snapshot(self) -> Iterable[bytes]:
        copied = sorted(self.values.items())
        yield b"%d" % self.applied
        for item in copied:
            yield json.dumps(item).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        first, *rest = chunks
        self.applied = int(first)
        self.values = dict(json.loads(chunk) for chunk in rest)


class Drifting(Keys):
    """A machine with one fault, which ``fault`` names."""

    fault = ""
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 0
        type(self).made += 1
        self.number = type(self).made

    def apply(self, command: Command) -> bytes | None:
        result = super().apply(command)
        if self.fault == "identity":
            return b"%d" % self.number
        if self.fault == "hash":
            return str([*{"a", "b", "c", "d", "e"}]).encode()
        if self.fault == "hidden":
            self.hidden += 1
            return b"%d" % self.hidden
        return result

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        if self.fault == "restore":
            self.values.pop("a", None)


class ByIdentity(Drifting):
    fault = "identity"


class ByHash(Drifting):
    fault = "hash"


class Hidden(Drifting):
    fault = "hidden"


class Forgets(Drifting):
    fault = "restore"


class Live(Keys):
    """Its snapshot reads the live values, so later commands change the snapshot."""

    def snapshot(self) -> Iterable[bytes]:
        yield b"0"
        for item in sorted(self.values.items()):
            yield json.dumps(item).encode()
