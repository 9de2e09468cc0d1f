"""The journal of a study: one line of JSON per event (`search.store.ledger.Event`), the only source of truth about
the study.

The Optuna study is built from it at every start, and MLflow follows it. A lock gives it one writer at a time; the
operating system releases it when its holder ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

from filelock import FileLock, Timeout

from search.store.layout import StorageError, StudyFolder, UserError, is_remote, reading, studies
from search.store.ledger import OLDER, Event, Ledger
from trainables.contract.formats import NewerFormatError
from trainables.contract.remote_code import this_user
from trainables.contract.trial import whole_file

SYNCED = ("space", "session", "start", "end", "reopen", "point", "close")  # events that a power cut must not lose
GOOD_ENDS = ("finished", "out_of_budget")  # of a stage, with nothing lost
TAIL = 256  # bytes by which a reader recognises the journal that it has read
WAIT_S = 0.3  # `alive` shares the lock for a moment


class Clock:
    """Seconds since 1970 that advance evenly even when the machine's clock is set.

    A clock that is set back, or set right after a machine's start, would otherwise stretch or spend budgets of time and
    end MLflow's runs before they began. Args: after: seconds since 1970 of the last event; time continues from there.
    """

    def __init__(self, after: float = 0.0) -> None:
        self._start = max(time.time(), after) - passed()

    def __call__(self) -> float:
        return self._start + passed()


def passed() -> float:
    """Seconds since some moment, those of a sleeping machine included where the system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class JournalError(UserError):
    """A journal has a line that cannot be, or that does not follow from those before it."""


class JournalWriteError(UserError):
    """The journal cannot be written: its disk is full, or gone."""


class Journal:
    """Appends events to the file and keeps the ledger in step. One writer at a time (the study's lock sees to it).

    clock: seconds since 1970, never before the last event.
    """

    _lost = ""  # why an event could not be written

    def __init__(self, path: Path, ledger: Ledger) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(path)
        self.path, self.ledger = path, fold(path, ledger)
        self.clock = Clock(self.ledger.last / 1000)
        self._file = path.open("a", encoding="utf-8")

    def append(self, kind: str, at: int | None = None, **fields: Any) -> Event:
        """Write one event and apply it. A killed process loses nothing, a power cut at most the
        events since the last `SYNCED` one.

        Args: at: milliseconds since 1970; None = now, by the journal's clock.
        Raises: JournalWriteError when the disk is full or the event cannot be serialised, and for a good end after
            that: the caller may not have reported it.
        """
        event: Event = writable({"e": kind, "t": self.now() if at is None else at, **fields})
        if self._lost and fields.get("status") in GOOD_ENDS:
            raise JournalWriteError(self._lost)
        try:
            self._file.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
            if kind in SYNCED:
                os.fsync(self._file.fileno())
        except Exception as error:
            what = getattr(error, "strerror", None) or error
            self._lost = f"{self._file.name}: cannot be written: {what}"
            raise JournalWriteError(self._lost) from error
        self.ledger.apply(event)
        return event

    def now(self) -> int:
        """Milliseconds since 1970, by the journal's clock."""
        return int(self.clock() * 1000)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `append` has raised for what could not be written
            self._file.close()


def fold(path: Path, ledger: Ledger) -> Ledger:
    """The ledger with all events of the journal applied. Raises: as `apply_from`."""
    for _ in apply_from(path, ledger):
        pass
    return ledger


def apply_from(path: Path, ledger: Ledger, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """(event, byte offset after its line) from a byte offset on, each applied to the ledger.

    Raises: JournalError naming file and line; StorageError where the file cannot be opened.
    """
    for event, end in read_with_ends(path, offset):
        try:
            ledger.apply(event)
        except NewerFormatError as error:
            raise JournalError(f"{path}:{_line(path, offset)}: {error}") from None
        except (LookupError, TypeError, ValueError) as error:
            raise _damaged(path, offset, f"does not follow from the lines before it ({error!r})") from error
        offset = end
        yield event, end


class JournalReader:
    """The ledger of a journal that another process writes: each `read_on` applies only what is new.

    A journal that was replaced (lines were salvaged, a bucket had another one) is read from its beginning.

    Args:
        observe: called with every event after it is applied.
        reset: called before the first event of a replaced journal.
    """

    def __init__(
        self,
        path: Path,
        maximise: bool = True,
        observe: Callable[[Event], object] = lambda _: None,
        reset: Callable[[], object] = lambda: None,
    ) -> None:
        self._path, self._maximise, self._observe, self._reset = path, maximise, observe, reset
        self.ledger = Ledger(maximise=maximise)
        self._offset, self._tail = 0, b""

    def read_on(self) -> Ledger:
        """Raises: as `apply_from`."""
        if self._offset and self._bytes_before(self._offset) != self._tail:
            self.ledger, self._offset = Ledger(maximise=self._maximise), 0
            self._reset()
        try:
            for event, end in apply_from(self._path, self.ledger, self._offset):
                self._offset = end
                self._observe(event)
        finally:
            self._tail = self._bytes_before(self._offset)
        return self.ledger

    def _bytes_before(self, offset: int) -> bytes:
        """The end of what was read: another journal differs there."""
        with reading(self._path):
            if not self._path.exists():
                return b""
            with self._path.open("rb") as file:
                file.seek(max(0, offset - TAIL))
                return file.read(min(TAIL, offset))


@dataclass(frozen=True)
class Identity:
    """Which study a journal is of: names repeat, in another storage or on another user's machine.

    Attributes:
        uuid: 32 hexadecimal digits. user: who began the study, "" where that is unknown.
        stored: whether the journal holds the uuid; that of an older study is a hash of the journal's first event.
    """

    uuid: str
    user: str
    stored: bool


def identity(path: Path) -> Identity | None:
    """Of the study with this journal; None while it has no event. Raises: as `read_with_ends`."""
    for first in read(path):
        stored = first["e"] == "space" and "uuid" in first
        text = json.dumps({**first, "e": ""}, sort_keys=True)  # kinds are renamed from format to format
        return Identity(first["uuid"] if stored else uuid5(NAMESPACE_OID, text).hex, first.get("user", ""), stored)
    return None


def new_identity() -> dict[str, str]:
    """The fields of a study's first event that say which study it is, and who began it."""
    return {"uuid": uuid4().hex, "user": this_user()}


def read(path: Path) -> Iterator[Event]:
    """The events; an incomplete last line is left out. Raises: as `read_with_ends`."""
    yield from (event for event, _ in read_with_ends(path))


def read_with_ends(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """(event, byte offset after its line) from a byte offset on; an incomplete last line is left out.

    Raises: JournalError; StorageError where the file cannot be opened.
    """
    with reading(path):
        if not path.exists():
            return
        f = path.open("rb")
    with f:
        f.seek(offset)
        for line in f:
            if not line.endswith(b"\n"):
                return
            if (event := parsed(line)) is None:
                raise _damaged(path, offset, "is not a line of a journal")
            offset += len(line)
            yield event, offset


def parsed(line: bytes) -> Event | None:
    """The event of a line, in the names of today's format; None when it is none."""
    try:
        event = json.loads(line)
    except ValueError:  # neither UTF-8 nor JSON
        return None
    if not (isinstance(event, dict) and isinstance(event.get("e"), str) and "t" in event):
        return None
    return {**event, "e": OLDER.get(event["e"], event["e"])}


def salvage(path: Path) -> list[str]:
    """Set aside every line that is damaged or hangs in the air without one that is; what is left is a journal again.

    The damaged file stays beside it as `<name>.damaged-<n>`. Returns: what was lost, a line each; [] if nothing was.
    Raises: JournalError for what a newer version wrote, which is not damaged.
    """
    ledger, good, lost = Ledger(), [], []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        event = parsed(line) if line.endswith(b"\n") else None
        if event is None:
            lost.append(f"line {number}: unreadable")
            continue
        try:
            ledger.apply(event)
        except NewerFormatError as error:
            raise JournalError(f"{path}:{number}: {error}") from None
        except (LookupError, TypeError, ValueError):
            lost.append(f"line {number}: {event['e']} of {event.get('id', event.get('number', 'the study'))}")
            continue
        good.append(line)
    if not lost:
        return []
    aside = next(p for n in itertools.count(1) if not (p := path.with_name(f"{path.name}.damaged-{n}")).exists())
    os.link(path, aside)
    with whole_file(path) as file:
        file.writelines(good)
    return [*lost, f"the file as it was: {aside}"]


def _line(path: Path, offset: int) -> int:
    """Number of the line that begins at this byte."""
    with path.open("rb") as f:
        return f.read(offset).count(b"\n") + 1


def _damaged(path: Path, offset: int, what: str) -> JournalError:
    return JournalError(
        f"{path}:{_line(path, offset)}: {what}; `search resume {path.parent.name} --salvage` sets such lines aside"
    )


def cut_torn_line(path: Path) -> None:
    """Drop an incomplete last line, left by a process that crashed while it wrote."""
    if not path.exists():
        return
    with path.open("rb+") as f:
        size = f.seek(0, os.SEEK_END)
        if size == 0:
            return
        step = 1 << 16
        end = size
        while end > 0:
            start = max(0, end - step)
            f.seek(start)
            found = f.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            f.truncate(end)


def writable(value: Any) -> Any:
    """The same with lone surrogates escaped, of an emoji that was cut in two: no file, store or terminal takes them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {writable(key): writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(writable, value))
    return value


def finite(value: float | None) -> float | None:
    """None for NaN and infinities: neither JSON nor any store takes them."""
    return value if value is not None and math.isfinite(value) else None


class StudyHeldError(StorageError):
    """Another process runs the study."""


@contextlib.contextmanager
def exclusive(folder: StudyFolder) -> Iterator[None]:
    """Hold the study for this process.

    Raises: StudyHeldError when another process holds it; StorageError when its disk does not support locks.
    """
    # No soft lock where the disk has no other: it would outlive its holder.
    lock = FileLock(folder.lock, timeout=WAIT_S, poll_interval=WAIT_S / 3, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StudyHeldError(f"study {folder.study} is being run by another process; see `search status`") from None
    except OSError as error:
        raise StorageError(f"{folder.lock}: cannot be locked: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def tracking_lock(folder: StudyFolder) -> FileLock:
    """Held while a process writes the study to MLflow (its driver, or `search status` and `track` without one): two at
    once would make runs twice. It is not the driver's lock, which marks a study as running."""
    return FileLock(folder.local / "tracked.lock", timeout=0, fallback_to_soft=False, thread_local=False)


def running_beside(folder: StudyFolder) -> list[str]:
    """The other studies of a storage on disk that are being run now, as far as this user may ask."""
    beside = [] if is_remote(folder.storage) else studies(folder.storage)
    return [other.study for other in beside if other != folder and _seen_alive(other)]


def running_here(storage: str) -> list[str]:
    """Studies of a storage that are being run now: on this machine, or on another one that shares the disk."""
    there = _working_copies(storage) if is_remote(storage) else studies(storage)
    return [folder.study for folder in there if alive(folder)]


def _working_copies(storage: str) -> list[StudyFolder]:
    """A bucket's studies that have a copy on this machine, without a request to the bucket."""
    copies = StudyFolder(storage, "any").local.parent
    return [StudyFolder(storage, path.name) for path in sorted(copies.glob("[!.]*"))]


def alive(folder: StudyFolder) -> bool:
    """Whether a driver of this study runs (on this machine, or on another one that shares the disk).

    The lock is shared for a moment, for which the file need only be readable: the driver may be another user's.

    Raises: StorageError when its disk does not support locks, or this user may not read the file.
    """
    try:
        with folder.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    except OSError as error:
        raise StorageError(f"{folder.lock}: cannot be locked: {error.strerror or error}") from error
    return False


def _seen_alive(folder: StudyFolder) -> bool:
    try:
        return alive(folder)
    except StorageError:
        return False
