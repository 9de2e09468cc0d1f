"""A study in a bucket: its journal lies there as numbered segments, and who creates the next one drives the study.

`<study>/journal/<number>` holds a header line and then the events that are new since the segment before it;
`<study>/journal/<first>-<last>` holds those of several. A segment is created only if it is absent, and is never
overwritten. A session takes a study by creating the next segment, and creates one every `BEAT_S` seconds from then on.
A driver that finds another session's segment where its own should go has lost the study and writes nothing any more.
No two machines' clocks are compared.

The driver works on a local copy of the study's files (`StudyFolder.local`); this module fetches and sends them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec

from search.store.journal import StudyHeldError, passed
from search.store.layout import SMALL, StorageError, StudyFolder, is_remote
from trainables.contract.errors import first_line
from trainables.contract.trial import whole_file

BEAT_S = 10.0  # between two segments, at most
TRUST_S = 20.0  # so long after its last segment a driver writes nothing until the bucket has answered
DOUBT_S = 30.0  # so long trials wait for that answer: a bucket that is down takes no writes either
LOST_S = 45.0  # without a new segment: the driver is gone; well above TRUST_S
POLL_S = 2.0
PUSH_S = 2.0  # between two pushes of new events, where a push is quick
SHARE = 20  # between two pushes at least so many times what the last one took
MERGED = 256  # so many segments become one
TRIES = 10  # of a reader, while a driver merges segments
SEGMENT = re.compile(r"(\d{8})(?:-(\d{8}))?")


@dataclass(frozen=True)
class Sign:
    """The last heartbeat of a study's driver. holder: for people; session: its token; number: of its segment."""

    number: int
    session: str
    holder: str
    closed: bool
    modified: float  # seconds since 1970, by the bucket's clock


class Hold:
    """This process's right to write a study; its methods may be called by several threads.

    A study on a disk is held by its file lock alone: there `owned` is true and nothing is sent.

    Args: lost: called once, with the reason, when another driver has taken the study.
    """

    def __init__(self, folder: StudyFolder, lost: Callable[[str], object] = lambda _: None) -> None:
        self._folder, self._on_loss = folder, lost
        self._one = threading.Lock()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="bucket", daemon=True)
        self._remote, self.is_lost, self._closed, self._failure = is_remote(folder.storage), False, False, ""
        self._sent_files: dict[str, tuple[int, int]] = {}  # (time of change, bytes) of each small file that is there
        self._unmerged: list[tuple[int, int]] = []  # (number, first byte) of the segments since the last merge
        self._number = self._sent = 0  # of the last segment; bytes of the journal that the bucket has
        self._confirmed = self._tried = passed()
        self._noticed: float | None = None  # when this silence of the bucket was
        self._session = secrets.token_hex(8)
        self._holder = f"{socket.gethostname()} (process {os.getpid()})"

    def take(self, report: Callable[[str], object]) -> None:
        """Create the next segment, then bring the local copy up to date.

        The caller holds the study's file lock, so a session of this local copy is one whose process is dead.

        Args: report: gets a line when it takes a while, or when only one machine may drive the storage's studies.
        Raises: StudyHeldError when another machine drives the study.
        """
        if not self._remote:
            return
        self._filesystem, self._root = fsspec.core.url_to_fs(self._folder.uri)
        _wait_for_silence(self._folder, report)
        segments = _segments(self._filesystem, self._root)
        self._number = max((last for _, last, _ in segments), default=0) + 1
        self._confirmed = passed()
        if self._create(self._number, b"") is None:
            raise StudyHeldError(f"study {self._folder.study} has just been taken by another process")
        if self._overwrites(self._number, b""):
            one = "cannot create a file only if it is absent: drive its studies from one machine only"
            report(f"storage {self._folder.storage} {one}")
        journal = pull(self._folder)
        with whole_file(self._folder.session) as file:
            file.write(self._session.encode())
        if self._number > 1:
            self._merge(1, self._number, journal)
        self._sent = len(journal)

    def owned(self) -> bool:
        """Whether this process may write the study now; false while the bucket has not answered for `TRUST_S`, and for
        good once another driver has taken the study. After `start` it never waits: the thread queries the bucket."""
        if not self._remote:
            return True
        if not self.is_lost and passed() - max(self._confirmed, self._tried) > TRUST_S:
            self._tried = passed()
            self._wake.set() if self._thread.is_alive() else self._try()
        trusted = passed() - self._confirmed <= TRUST_S
        self._noticed = None if trusted else self._noticed or passed()
        return not self.is_lost and trusted

    @property
    def trouble(self) -> str:
        """Why the bucket has not taken the last push, in one line; "" when all is well. A client tries a bucket that is
        down for half a minute and more before it raises: `TRUST_S` of silence count as trouble."""
        silent = self._remote and not (self.is_lost or self._closed) and passed() - self._confirmed > TRUST_S
        return self._failure or (f"{self._folder.storage} does not answer" if silent else "")

    def unsure(self) -> bool:
        """Whether trials are to wait: after a silence, this machine's sleep say, the study may be another driver's."""
        return not self.owned() and not self.is_lost and passed() - (self._noticed or passed()) < DOUBT_S

    def push(self, closed: bool = False) -> None:
        """Send new events, or a heartbeat when one is due. Raises: what the store raises."""
        if not self._remote:
            return
        with self._one:
            if self.is_lost or self._closed:
                return
            new, now = self._new_lines(), passed()
            if not (new or closed) and now - self._confirmed < BEAT_S:
                return
            # A segment of ours may have been merged away by another driver, so that its number is free again.
            late = now - self._confirmed > TRUST_S and self._overtaken()
            sent = None if late else self._create(self._number + 1, new, closed)
            if sent is None:
                self.is_lost = True
                self._on_loss(f"another driver has taken study {self._folder.study}")
                return
            self._number, self._confirmed, self._closed = self._number + 1, now, closed and sent == len(new)
            self._unmerged.append((self._number, self._sent))
            self._sent += sent
            self._send_small_files()
            if len(self._unmerged) >= MERGED:
                first, begin = self._unmerged[0]
                self._merge(first, self._number, self._read(begin, self._sent))

    def start(self) -> None:
        """Push now and then, in a thread, until `finish` or `stop`."""
        if self._remote:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def finish(self, patience_s: float) -> None:
        """Push what is left and give the study back; a storage in trouble is tried again for `patience_s` seconds."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        until = time.monotonic() + patience_s
        while not self._try(closed=True) and time.monotonic() < until:
            time.sleep(1.0)

    def _loop(self) -> None:
        took = 0.0
        while True:
            self._wake.wait(max(PUSH_S, min(SHARE * took, BEAT_S / 2)))
            if self._stop.is_set():
                return
            self._wake.clear()
            began = time.monotonic()
            self._try()
            took = time.monotonic() - began

    def _try(self, closed: bool = False) -> bool:
        try:
            self.push(closed)
        except Exception as error:  # stores raise what they like; nothing of it may reach the search
            self._failure = f"{self._folder.storage}: {first_line(error)}"
        else:
            self._failure = ""
        self._tried = passed()
        return not self._failure

    def _new_lines(self) -> bytes:
        """The whole lines that the bucket does not have."""
        if not self._folder.journal.exists():
            return b""
        new = self._read(self._sent)
        return new[: new.rfind(b"\n") + 1]

    def _read(self, begin: int, end: int | None = None) -> bytes:
        with self._folder.journal.open("rb") as file:
            file.seek(begin)
            return file.read() if end is None else file.read(end - begin)

    def _send_small_files(self) -> None:
        for name in SMALL:
            here = self._folder.local / name
            if here.exists() and (now := (here.stat().st_mtime_ns, here.stat().st_size)) != self._sent_files.get(name):
                self._filesystem.put_file(str(here), f"{self._root}/{name}")
                self._sent_files[name] = now

    def _header(self, closed: bool = False) -> bytes:
        return json.dumps({"session": self._session, "holder": self._holder, "closed": closed}).encode() + b"\n"

    def _create(self, number: int, events: bytes, closed: bool = False) -> int | None:
        """Returns: how many bytes of events the segment has; None when it is another session's. An earlier attempt may
        have succeeded though it seemed to fail, with the events of then."""
        try:
            _create(self._filesystem, self._path(number), self._header(closed) + events)
        except FileExistsError:
            header, _, there = self._filesystem.cat_file(self._path(number)).partition(b"\n")
            return len(there) if json.loads(header)["session"] == self._session else None
        return len(events)

    def _overwrites(self, number: int, events: bytes) -> bool:
        """Whether the store replaces a file that it was to create: the same content, to see."""
        try:
            self._filesystem.pipe_file(self._path(number), self._header() + events, mode="create")
        except (FileExistsError, NotImplementedError) as error:
            return isinstance(error, NotImplementedError)
        return True

    def _path(self, number: int) -> str:
        return f"{self._root}/journal/{number:08d}"

    def _overtaken(self) -> bool:
        return any(last > self._number for _, last, _ in _segments(self._filesystem, self._root))

    def _merge(self, first: int, last: int, events: bytes) -> None:
        """Replace several segments by one; readers prefer it, so a crash between the two steps does no harm."""
        with contextlib.suppress(FileExistsError):
            _create(self._filesystem, f"{self._root}/journal/{first:08d}-{last:08d}", self._header() + events)
        for begin, end, name in _segments(self._filesystem, self._root):
            if first <= begin and end <= last and (begin, end) != (first, last):
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.rm_file(name)
        self._unmerged.clear()

    def replace(self) -> None:
        """Put the local journal in the place of the whole one there (lines of it were salvaged)."""
        if self._remote:
            self._number += 1
            self._create(self._number, b"")
            journal = self._read(0)
            self._merge(1, self._number, journal)
            self._sent = len(journal)


@contextlib.contextmanager
def held(
    folder: StudyFolder, report: Callable[[str], object], lost: Callable[[str], object] = lambda _: None
) -> Iterator[Hold]:
    """Hold a study, its local copy brought up to date, and give it back. Args, Raises: as `Hold.take`."""
    hold = Hold(folder, lost)
    hold.take(report)
    try:
        yield hold
    finally:
        hold.stop()
        with contextlib.suppress(Exception):  # a store in trouble: the next driver waits `LOST_S`
            hold.push(closed=True)


def pull(folder: StudyFolder) -> bytes:
    """Bring the local copy of a study in a bucket up to date. Returns: the journal as the bucket has it.

    A local journal that is no beginning of the one there (its machine crashed before it sent all, and another one
    continued) is set aside. One that only has more events stays: no other driver wrote the study meanwhile.
    """
    if not is_remote(folder.storage):
        return b""
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    if (there := fetch(filesystem, root)) is None:
        return b""
    folder.local.mkdir(parents=True, exist_ok=True)
    here = folder.journal.read_bytes() if folder.journal.exists() else b""
    if here.startswith(there):
        return there
    if not there.startswith(here):
        unsent = (folder.journal.with_name(f"{folder.journal.name}.unsent-{n}") for n in itertools.count(1))
        folder.journal.rename(next(path for path in unsent if not path.exists()))
        folder.tracked.unlink(missing_ok=True)  # an offset into the other journal
    with whole_file(folder.journal) as file:
        file.write(there)
    for name in SMALL:
        if filesystem.exists(f"{root}/{name}"):
            filesystem.get_file(f"{root}/{name}", str(folder.local / name))
    return there


def last_sign(folder: StudyFolder) -> tuple[str, float] | None:
    """(machine that drives a study in a bucket, seconds since its last segment); None where none does.

    The seconds are this machine's clock against the bucket's: for people only.
    """
    sign = _last(folder) if is_remote(folder.storage) else None
    return None if sign is None or sign.closed else (sign.holder, max(0.0, time.time() - sign.modified))


def fetch(filesystem: Any, root: str) -> bytes | None:
    """A study's journal out of its segments, None where there is none. Its driver may be at work.

    Raises: StorageError where a segment is missing.
    """
    for _ in range(TRIES):
        if not (segments := _segments(filesystem, root)):
            return None
        with contextlib.suppress(FileNotFoundError):  # merged with others between the listing and now
            if (chosen := _chain(segments)) is not None:
                return b"".join(filesystem.cat_file(name).partition(b"\n")[2] for name in chosen)
    raise StorageError(f"{root}/journal: a segment is missing")


def _segments(filesystem: Any, root: str) -> list[tuple[int, int, str]]:
    """(first, last, path) of each segment there, in order."""
    filesystem.invalidate_cache()
    try:
        names = [entry.rstrip("/") for entry in filesystem.ls(f"{root}/journal", detail=False)]
    except FileNotFoundError:
        return []
    matches = ((SEGMENT.fullmatch(name.rsplit("/", 1)[-1]), name) for name in names)
    return sorted((int(m[1]), int(m[2] or m[1]), name) for m, name in matches if m)


def _chain(segments: list[tuple[int, int, str]]) -> list[str] | None:
    """The segments that make up the journal, the longest at each number; None where one is missing."""
    longest = {first: (last, name) for first, last, name in segments}  # sorted: the longest comes last
    position, chosen = 1, []
    while position in longest:
        last, name = longest[position]
        chosen.append(name)
        position = last + 1
    return None if any(last >= position for _, last, _ in segments) else chosen


def _create(filesystem: Any, path: str, data: bytes) -> None:
    """Raises: FileExistsError where there is such a file."""
    try:
        filesystem.pipe_file(path, data, mode="create")
    except NotImplementedError:
        if filesystem.exists(path):
            raise FileExistsError(path) from None
        filesystem.pipe_file(path, data)


def _last(folder: StudyFolder) -> Sign | None:
    """None where no session has ever begun."""
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    for _ in range(TRIES):
        if not (segments := _segments(filesystem, root)):
            return None
        _, number, name = max(segments, key=lambda s: (s[1], -s[0]))
        with contextlib.suppress(FileNotFoundError):  # merged between the listing and now
            header = json.loads(filesystem.cat_file(name).partition(b"\n")[0])
            return Sign(number, header["session"], header["holder"], header["closed"],
                        filesystem.modified(name).timestamp())  # fmt: skip
    return None


def _wait_for_silence(folder: StudyFolder, report: Callable[[str], object]) -> None:
    """Raises: StudyHeldError while another machine's session creates segments."""
    before = _last(folder)
    mine = folder.session.read_text() if folder.session.exists() else ""
    if before is None or before.closed or before.session == mine:
        return
    report(f"study {folder.study} was last driven by {before.holder}: waiting {LOST_S:.0f} s for a heartbeat")
    until = time.monotonic() + LOST_S
    while time.monotonic() < until:
        time.sleep(POLL_S)
        if (now := _last(folder)) is not None and now.number != before.number:
            if now.closed:
                return
            raise StudyHeldError(f"study {folder.study} is being run by {now.holder}; see `search status`")
