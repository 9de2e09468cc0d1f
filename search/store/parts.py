"""A growing file in a store that takes whole objects only: kept as parts, so that a push sends what is new.

Part 0 has the file's own name, every other one `<name>.<first byte>`. A push writes the new bytes as a part, taken
together with the parts before it that are not longer: there are few parts, and each byte is sent a few times (the
logarithm of the number of pushes). Parts may overlap when a writer died between two steps; they say the same.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TRIES = 10  # of a reader, when its writer pushes meanwhile


class Parts:
    """Sends one file, which only grows, from this process. Its first push replaces whatever was there."""

    def __init__(self, filesystem: Any, target: str) -> None:
        self._filesystem, self._target = filesystem, target
        self._sent: list[tuple[int, int]] = []  # (first, behind the last) byte of each part there, in order

    def push(self, source: Path) -> None:
        """Send what the file has and the store has not."""
        end = source.stat().st_size
        kept = list(self._sent) if self._sent and self._sent[-1][1] <= end else []
        first = kept[-1][1] if kept else 0
        if kept and first == end:
            return
        while kept and kept[-1][1] - kept[-1][0] <= end - first:
            first = kept.pop()[0]
        with source.open("rb") as file:
            file.seek(first)
            self._filesystem.pipe_file(part_name(self._target, first), file.read(end - first))
        stays = {part_name(self._target, start) for start, _ in kept} | {part_name(self._target, first)}
        before = [part_name(self._target, start) for start, _ in self._sent]
        for name in before or there(self._filesystem, self._target):
            if name not in stays:
                self._filesystem.rm_file(name)
        self._sent = [*kept, (first, end)]


def part_name(target: str, first: int) -> str:
    """What the part that begins with this byte is called."""
    return f"{target}.{first:015d}" if first else target


def there(filesystem: Any, target: str) -> list[str]:
    """The parts of a file that a store has, in order; [] where it has none."""
    filesystem.invalidate_cache()
    folder, name = target.rsplit("/", 1)
    try:
        entries = [entry.rstrip("/") for entry in filesystem.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(
        entry for entry in entries if re.fullmatch(rf"{re.escape(name)}(\.\d{{15}})?", entry.rsplit("/", 1)[-1])
    )


def fetch(filesystem: Any, target: str) -> bytes | None:
    """The whole file out of its parts, None where there is none. Its writer may be at work."""
    for _ in range(TRIES):
        try:
            return _joined(filesystem, there(filesystem, target))
        except FileNotFoundError:  # taken together with others between the listing and now
            continue
    raise OSError(f"{target}: its parts change faster than they can be read")


def _joined(filesystem: Any, names: list[str]) -> bytes | None:
    content = b""
    for number, name in enumerate(names):
        first = int(name.rsplit(".", 1)[-1]) if number else 0
        if first > len(content):
            break  # its writer had not come further
        content += filesystem.cat_file(name)[len(content) - first :]
    return content if names else None
