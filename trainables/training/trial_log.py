"""What a trial prints and warns, kept in its folder: at most the first and the last part of it."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import fsspec

from trainables.contract.trial import LOG

FIRST, LAST = 200, 800  # lines that are kept
LINE = 2_000  # characters of one


class _Kept(io.TextIOBase):
    """A stream that passes everything on and keeps lines. What else is asked of it, the one behind it answers."""

    def __init__(self, onward: Any) -> None:
        self._onward, self._rest = onward, ""
        self.buffer = _Bytes(self)
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST)
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with contextlib.suppress(Exception):
            self._onward.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._keep(line.rsplit("\r", 1)[-1])  # of a bar that redraws itself the last state
        if len(self._rest) > LINE:
            self._rest = self._rest[-LINE:]
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._onward.flush()

    def fileno(self) -> int:
        return int(self._onward.fileno())

    def detach(self) -> Any:
        return self.buffer

    def isatty(self) -> bool:
        return bool(self._onward.isatty())

    @property
    def encoding(self) -> Any:  # type: ignore[override]  # C's is read-only, too
        return self._onward.encoding

    @property
    def errors(self) -> Any:  # type: ignore[override]  # as encoding
        return self._onward.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._onward, name)

    def text(self) -> str:
        if self._rest:
            self._keep(self._rest)
            self._rest = ""
        dropped = [f"[{self._dropped} lines left out]"] if self._dropped else []
        return "".join(f"{line}\n" for line in [*self._first, *dropped, *self._last])

    def _keep(self, line: str) -> None:
        line = line[:LINE]
        if len(self._first) < FIRST:
            self._first.append(line)
            return
        self._dropped += len(self._last) == LAST
        self._last.append(line)


class _Bytes(io.BufferedIOBase):
    """The stream's `buffer`: what is written there as bytes is text of it."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        read = bytes(data)
        self._kept.write(self._decode(read))
        return len(read)

    def flush(self) -> None:
        self._kept.flush()

    def fileno(self) -> int:
        return self._kept.fileno()


@contextlib.contextmanager
def kept_log(folder: str) -> Iterator[None]:
    """Inside, what this process prints and warns is kept; afterwards it is added to the trial's log, if there is any.

    Args: folder: of the trial, path or URI.
    """
    kept = _Kept(sys.stderr)
    try:
        with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept):
            yield
    finally:
        if text := kept.text():
            with contextlib.suppress(Exception):  # a full disk: the trial's own end says so
                filesystem, path = fsspec.core.url_to_fs(f"{folder}/{LOG}")
                before = filesystem.cat_file(path).decode(errors="replace") if filesystem.exists(path) else ""
                filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                filesystem.pipe_file(path, (before + text)[-LAST * LINE :].encode(errors="backslashreplace"))
