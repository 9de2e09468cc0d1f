"""Token sequences, the length that prompts leave to a text, the cache of what is computed once per content. No torch.

An entry's file name is the hash of everything it depends on, so a file is never stale. One process of a machine makes
an entry while other processes wait for it. Arrays are memory-mapped: processes share the pages of one file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError
from trainables.contract.trial import only_one, phase, whole_file
from trainables.data.eviction import evict

# Column name -> texts: {"sentence"}; {"anchor", "positive"} and maybe "negative", "negative_2", ...; or {"first",
# "second", "score"}, the scores as texts.
Texts = Mapping[str, Sequence[str]]
PROMPTS = ("query", "document")  # what a text is to a prompted encoder
Tokens = NDArray[np.int32]  # one sentence: token (or word) ids without special tokens, not truncated


class StoredTexts(Sequence[str]):
    """Texts on the disk, too large to copy into memory.

    identity: changes when their content does; stands for them in the keys of caches.
    """

    identity: str


@dataclass(frozen=True)
class TokenColumn:
    """Token sequences of a corpus column, laid end to end (possibly memory-mapped and shared between processes).

    flat: (total,) int32 ids; starts: (n + 1,) int64 offsets; sequence i is flat[starts[i]:starts[i + 1]].
    """

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def take(self, index: Iterable[int]) -> list[Tokens]:
        """The sequences at `index`, in that order."""
        return [self[int(i)] for i in index]


@dataclass(frozen=True)
class PromptSizes:
    """The tokens that prompts leave for a text: in training a text is cut at `max_length` behind its prompt.

    tokens: of each prompt by its name in `data.prompts`; special: what the tokenizer puts around a sentence.
    """

    tokens: Mapping[str, int]
    special: int

    def problems(self, max_length: int) -> list[tuple[str, str]]:
        """Prompts that leave no token for the text, as (key, what is wrong)."""
        return [
            (
                f"data.prompts.{name}",
                f"its {count} tokens and {self.special} special ones leave no room for the text: "
                f"expected max_length above {count + self.special}, got {max_length}",
            )
            for name, count in self.tokens.items()
            if count + self.special >= max_length
        ]

    def notes(self, max_length: int) -> list[str]:
        """Prompts that leave less than half of the tokens for the text, a line each."""
        rooms = {name: max_length - self.special - count for name, count in self.tokens.items()}
        return [
            f"data.prompts.{name}: {self.tokens[name]} tokens of max_length {max_length}, {room} left for the text"
            for name, room in rooms.items()
            if 0 < 2 * room < max_length
        ]


def without_trailing_blanks(prompts: Mapping[str, str]) -> dict[str, str]:
    """The prompts as their tokens are counted: a blank at the end may be part of the text's first token."""
    return {name: prompt.rstrip() for name, prompt in prompts.items()}


@cache
def local_prompt_sizes(folder: Path, prompts: tuple[tuple[str, str], ...]) -> PromptSizes | None:
    """Sizes by the tokenizer in an encoder's folder; None where it has no `tokenizer.json` that can be read."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # not there, or of a kind that only transformers reads: the trial counts
        return None

    def count(text: str, special: bool) -> int:
        return len(tokenizer.encode(text, add_special_tokens=special).ids)

    tokenizer.no_padding()
    tokenizer.no_truncation()
    return PromptSizes(
        {name: count(text, special=False) for name, text in without_trailing_blanks(dict(prompts)).items()},
        count("a", special=True) - count("a", special=False),
    )


CACHE_DIR_VARIABLE = "SEARCH_CACHE_DIR"
MAX_TOKENS = 512  # of a text, stored at least; an encoder with room for more has them stored
CHUNK = 8192  # texts per call of the tokenizer: bounds the memory of its results
MEMO_ENTRIES = 32  # entries in a process's memory; token columns are memory-mapped and cost little
FORMAT = b"1"  # part of every hash; raise it when the layout of the files changes

T = TypeVar("T")
_ABSENT = object()
Encode = Callable[[Sequence[str]], Iterable[Sequence[int]]]  # texts -> token ids without special tokens


def cache_dir() -> Path:
    """The folder of cached things: `SEARCH_CACHE_DIR`, else the user's cache folder.

    Raises: DataError when others can write what `SEARCH_CACHE_DIR` names: pickles in it would be their programs.
    """
    value = os.environ.get(CACHE_DIR_VARIABLE)
    if not value:
        import platformdirs  # only here: a bare GPU machine runs `benchmarks card` without it

        return Path(platformdirs.user_cache_dir("contrastive-search"))
    folder = Path(value).expanduser()
    with contextlib.suppress(OSError):  # not there yet: we make it
        there = folder.stat()
        mine = not hasattr(os, "getuid") or there.st_uid == os.getuid()
        if not mine or there.st_mode & 0o002 or (there.st_mode & 0o020 and there.st_gid != os.getgid()):
            who = "belongs to another user" if not mine else "others can write it"
            raise DataError(f"{CACHE_DIR_VARIABLE}={value}: {who}; give a folder of your own, `chmod go-w` it")
    return folder


def ready(folder: Path) -> Path:
    """A cache's folder, made where it is not there.

    Raises: DataError when it cannot be written; OSError of a full disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = error.strerror or str(error)
    if why:
        raise DataError(
            f"{folder}: the cache cannot be written ({why}); set {CACHE_DIR_VARIABLE} to a folder of your own"
        )
    return folder


def content_hash(parts: object) -> str:
    """32 hex digits for nested content: None, bool, numbers, texts, bytes, paths, sequences, mappings, arrays, columns.

    Raises: TypeError for anything else, since its content cannot be known.
    """
    digest = hashlib.blake2b(FORMAT, digest_size=16)
    _feed(digest, parts)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    """Every value starts with its type and length, so that different contents never run together."""
    if isinstance(value, StoredTexts):
        _feed(digest, f"texts {value.identity}".encode())
    elif isinstance(value, (list, tuple)):
        digest.update(b"list %d " % len(value))
        if value and all(type(v) is str for v in value):  # a corpus: one pass instead of one call per text
            encoded = [v.encode("utf-8", "surrogatepass") for v in value]
            digest.update(b"texts ")
            digest.update(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)).tobytes())
            digest.update(b"".join(encoded))
            return
        for v in value:
            _feed(digest, v)
    elif isinstance(value, Mapping):
        digest.update(b"mapping %d " % len(value))
        for key in sorted(value, key=repr):
            _feed(digest, key)
            _feed(digest, value[key])
    elif isinstance(value, TokenColumn):
        digest.update(b"column ")
        _feed(digest, value.flat)
        _feed(digest, value.starts)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"array {value.dtype.str} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif value is None or isinstance(value, (bool, int, float, str, bytes, os.PathLike, np.generic)):
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        digest.update(f"{type(value).__name__} {len(raw)} ".encode())
        digest.update(raw)
    else:
        raise TypeError(f"cache key: expected texts, numbers, arrays, lists or mappings, got {type(value).__name__}")


@dataclass(frozen=True)
class ColumnRows:
    """A token column that is not made yet: its sequences, some at a time."""

    chunks: Iterable[list[Sequence[int]]]

    def save(self, flat: BinaryIO) -> NDArray[np.int64]:
        """Write the tokens as a .npy file; returns their offsets, (n + 1,)."""
        lengths = [np.zeros(1, dtype=np.int64)]
        at = _npy_header(flat, 0)
        for rows in self.chunks:
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
            total = int(lengths[-1].sum())
            flat.write(np.fromiter((i for row in rows for i in row), dtype=np.int32, count=total).tobytes())
        starts: NDArray[np.int64] = np.concatenate(lengths).cumsum()
        flat.seek(0)
        end = _npy_header(flat, int(starts[-1]))
        assert end == at, "numpy leaves room for the number of values"
        return starts


def _npy_header(file: BinaryIO, count: int) -> int:
    about = {"descr": np.dtype(np.int32).str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, about)
    return file.tell()


class DiskCache:
    """Results made once per content, stored in a folder; the latest ones also in this process.

    A token column or an array comes back memory-mapped and read-only; anything else is pickled, so the folder must be
    one that only its user can write (the user's cache folder is). A file that cannot be read is made anew.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_dir()
        self._memo: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], T], alone: bool = True) -> T:
        """`make()`, or what it gave before for equal `parts`.

        Args:
            name: what it is, a word for file names; things of different names never mix.
            parts: everything the result depends on; see `content_hash`.
            alone: whether other processes wait; False where `make` waits for one that makes the same entry.
        """
        key = f"{name}-{content_hash(parts)}"
        with self._lock:
            if key in self._memo:
                self._memo.move_to_end(key)
                return self._memo[key]  # type: ignore[no-any-return]
        base = self.folder / key
        value = _load(base)
        if value is _ABSENT:
            ready(self.folder)
            with only_one(base) if alone else contextlib.nullcontext():
                value = _made(base, make)
        else:
            _used(base)
        with self._lock:
            self._memo[key] = value
            while len(self._memo) > MEMO_ENTRIES:
                self._memo.popitem(last=False)
        return value  # type: ignore[no-any-return]


def _made(base: Path, make: Callable[[], Any]) -> Any:
    """The entry, made if no other process has made it meanwhile."""
    if (value := _load(base)) is not _ABSENT:
        return value
    made = make()
    _store(base, made)
    evict(base.parent)
    value = _load(base)  # memory-mapped, as every later process gets it
    if isinstance(made, ColumnRows) and value is _ABSENT:
        raise DataError(f"{base}: what was just written cannot be read")
    return made if value is _ABSENT else value


def _used(base: Path) -> None:
    """Note on an entry's files that they were used now: a mount may keep no access times."""
    for suffix in (".flat.npy", ".starts.npy", ".npy", ".pickle"):
        with contextlib.suppress(OSError):
            os.utime(base.with_name(base.name + suffix))


class TokenCache:
    """Token columns of texts under one tokenizer.

    Args:
        encode: texts -> token ids; see `tokenizer_encoder` for Hugging Face tokenizers.
        fingerprint: changes when the tokenizer does; see `tokenizer_fingerprint`.
        cache: where the columns are stored; most: tokens stored of a text.
    """

    def __init__(
        self, encode: Encode, fingerprint: str, cache: DiskCache | None = None, most: int = MAX_TOKENS
    ) -> None:
        self.encode, self.fingerprint, self.cache, self.most = encode, fingerprint, cache or DiskCache(), most

    def tokenise(self, texts: Sequence[str], before: str = "") -> TokenColumn:
        """Token ids of every text without special tokens, at most `most` each.

        Args: before: what stands before every text.
        """
        texts = texts if isinstance(texts, (list, StoredTexts)) else list(texts)
        parts = [self.fingerprint, self.most, *([before] if before else []), texts]
        # What is made is written as it comes, and what comes back is mapped: neither is ever whole in memory.
        return self.cache.cached("tokens", parts, lambda: cast(TokenColumn, ColumnRows(self._rows(texts, before))))

    def _rows(self, texts: Sequence[str], before: str) -> Iterator[list[Sequence[int]]]:
        for start in range(0, len(texts), CHUNK):
            phase("tokenising", start, len(texts))
            some = texts[start : start + CHUNK]
            rows = self.encode([before + text for text in some] if before else some)
            yield [row[: self.most] for row in rows]


def tokenizer_encoder(tokenizer: Any) -> Encode:
    """`Encode` of a Hugging Face tokenizer; a fast one encodes whole batches outside Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[no-any-return]
    return lambda texts: (e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False))


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of all that decides a tokenizer's ids: its serialised pipeline, or class and vocabulary of a slow one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return content_hash(backend.to_str())
    options = {k: v for k, v in tokenizer.init_kwargs.items() if isinstance(v, (bool, int, float, str))}
    return content_hash([type(tokenizer).__name__, tokenizer.get_vocab(), options])


def _store(base: Path, value: object) -> None:
    if isinstance(value, ColumnRows):
        with whole_file(base.with_name(base.name + ".flat.npy")) as file:
            starts = value.save(file)
        _write(base, ".starts.npy", lambda file: np.save(file, starts))  # last: its presence completes the entry
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        _write(base, ".npy", lambda file: np.save(file, value))
    else:
        _write(base, ".pickle", lambda file: pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL))


def _write(base: Path, suffix: str, save: Callable[[Any], None]) -> None:
    with whole_file(base.with_name(base.name + suffix)) as file:
        save(file)


def _load(base: Path) -> Any:
    """The stored value, or `_ABSENT` if there is none that can be read."""
    paths = {suffix: base.with_name(base.name + suffix) for suffix in (".starts.npy", ".flat.npy", ".npy", ".pickle")}
    try:
        if paths[".starts.npy"].exists():
            return _checked(TokenColumn(_mapped(paths[".flat.npy"]), _mapped(paths[".starts.npy"])))
        if paths[".npy"].exists():
            return _mapped(paths[".npy"])
        if paths[".pickle"].exists():
            return pickle.loads(paths[".pickle"].read_bytes())
    except Exception:  # a damaged pickle can raise anything; whatever is wrong, the entry is made anew
        return _ABSENT
    return _ABSENT


def _mapped(path: Path) -> NDArray[Any]:
    """A read-only view of the file. A plain array: slicing a `np.memmap` costs several times more."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: empty")
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _checked(column: TokenColumn) -> TokenColumn:
    starts = column.starts
    whole = starts.ndim == 1 and len(starts) and starts[0] == 0 and starts[-1] == len(column.flat)
    if not whole or (np.diff(starts) < 0).any():
        raise ValueError("the offsets do not fit the tokens")
    return column


def behind_prompt(tokens: Tokens, prompt: int, change: Callable[[Tokens], Tokens]) -> Tokens:
    """A sentence, changed behind the tokens of its prompt only. prompt: their number."""
    return np.concatenate([tokens[:prompt], change(tokens[prompt:])]) if prompt else change(tokens)
