"""Finding an encoder: a local folder, the hub's cache on this machine, the hub. Does not import torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainables.contract.declaration import OWN_ENCODER, TRANSFORMER, WORD_VECTORS, EncoderFamily
from trainables.contract.errors import EncoderError, first_line
from trainables.contract.remote_code import lacks_code, runs_code, without_code
from trainables.encoders.word_vectors import check_vectors

BUILTIN_ENCODER, BUILTIN_VECTORS = TRANSFORMER.builtin, WORD_VECTORS.builtin
HUB_SECONDS = 10.0  # how long the hub may take to answer before it counts as unreachable
FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]  # of a snapshot; *.bin only where there is no safetensors
NOT_WEIGHTS = ("config.json", "*token*", "vocab*", "merges*", "*.model")  # of configuration and tokenizer
MIB, PIECES = 2**20, 16  # weights of at most 16 MiB are read whole, of a larger file 16 pieces of 1 MiB


def check_encoder(source: str, family: EncoderFamily = TRANSFORMER) -> None:
    """Pre-flight check that the encoder (or the file of word vectors) exists here or on the hub; downloads nothing.

    Raises: EncoderError, or DataError for word vectors, in one line.
    """
    if family == OWN_ENCODER:
        if source:
            local_folder(source)  # its method checks the rest
        return
    if family == WORD_VECTORS:
        if source != BUILTIN_VECTORS:
            check_vectors(Path(source).expanduser())
        return
    if source.startswith("builtin:"):
        if source != BUILTIN_ENCODER:
            raise EncoderError(f"encoder {source!r}: unknown; the only builtin encoder is {BUILTIN_ENCODER}")
    elif (folder := local_folder(source)) is not None:
        if fault := folder_fault(folder):
            raise EncoderError(f"encoder {source!r}: {fault}")
    else:
        hub_folder(source, download=False)


def local_folder(source: str) -> Path | None:
    """The folder that `source` names, or None when it is a hub id.

    Raises: EncoderError if it can only be a folder and is not there.
    """
    source = without_code(source)
    if os.path.isdir(folder := os.path.expanduser(source)):  # of any text: pathlib raises where a name is too long
        return Path(folder)
    name = source.partition("@")[0]
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise EncoderError(
            f"encoder {source!r}: no such folder; give an existing folder, a hub id or {BUILTIN_ENCODER}"
        )
    return None


WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # or in parts, listed by NAME.index.json
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "tokenizer_config.json")
LFS = b"version https://git-lfs"


def folder_fault(folder: Path) -> str:
    """Why an encoder's folder cannot be loaded: a missing or truncated file; "" if nothing is found."""
    config = folder / "config.json"
    if not config.is_file():
        inside = next(iter(sorted(folder.glob("*/config.json"))), None)
        hint = f"; {inside.parent} has one" if inside else ""
        what = "an adapter of peft: merge it into its encoder" if (folder / "adapter_config.json").is_file() else "none"
        return f"expected a folder with config.json, weights and a tokenizer, got {what}{hint}"
    try:
        if not isinstance(json.loads(config.read_text(encoding="utf-8")), dict):
            return "config.json: expected an object"
    except ValueError as error:
        return f"config.json: not JSON: {first_line(error)}"
    weights, fault = _weights(folder)
    if fault:
        return fault
    if not weights:
        others = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.suffix in FOREIGN)
        got = f"; {', '.join(others[:3])} is of another format" if others else ""
        return f"no weights: expected {' or '.join(WEIGHTS)} (or their parts with an index){got}"
    if not any(any(folder.glob(name)) for name in TOKENIZERS):
        return f"no tokenizer: expected one of {', '.join(TOKENIZERS[:-1])}"
    return next(filter(None, map(_cut_off, weights)), "")


FOREIGN = (".onnx", ".h5", ".msgpack", ".gguf", ".ot", ".xml", ".ckpt", ".pt", ".pth", ".bin", ".safetensors")


def _weights(folder: Path) -> tuple[list[Path], str]:
    """The files of weights, and what is wrong with their index."""
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name], ""
        if index.is_file():
            try:
                listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
                parts = sorted(set(map(str, listed)))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                return [], f"{index.name}: expected a weight_map: {first_line(error)}"
            missing = [part for part in parts if not (folder / part).is_file()]
            return [folder / part for part in parts], f"no weights: {index.name} lists {missing[0]}" if missing else ""
    return [], ""


def _cut_off(file: Path) -> str:
    """Why a file of weights is not complete, "" if it seems to be: its header holds its length."""
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(len(LFS))
        if start == LFS:
            return f"{file.name}: a pointer of Git LFS, not the weights; fetch them with `git lfs pull`"
        if file.suffix != ".safetensors":
            return "" if size else f"{file.name}: it is empty"
        length = int.from_bytes(start[:8], "little")
        content.seek(8)
        try:
            header = json.loads(content.read(min(length, size)))
            end = 8 + length + max([0, *(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")])
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{file.name}: no safetensors file, or cut off in its header"
    return f"{file.name}: cut off: expected {end:,} bytes, got {size:,}" if size < end else ""


def available_folder(source: str) -> Path | None:
    """The folder of an encoder on this machine: local, or in the hub's cache; no network. None for the builtin one."""
    if source.startswith("builtin:"):
        return None
    try:
        folder = local_folder(source)
        return _cached_snapshot(source) if folder is None else _complete(folder)
    except Exception:  # missing, or not the name of a model: whoever needs it raises
        return None


def _cached_snapshot(source: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    name, _, revision = without_code(source).partition("@")
    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=FILES, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    folder = _complete(Path(found))
    return None if folder is not None and runs_code(source) and lacks_code(folder) else folder


def _complete(folder: Path) -> Path | None:
    """The folder if it has a configuration and weights."""
    weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    return folder if weights and (folder / "config.json").is_file() else None


def hub_folder(source: str, *, download: bool = True) -> Path | None:
    """The snapshot of a hub model on this machine, downloaded if necessary.

    Args:
        source: `id` or `id@revision`; with its code, if that runs.
        download: False = only check that it could be; None when it is not on this machine yet.
    Raises: EncoderError if the hub has no such model, does not give its files to this user, or cannot be reached.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    at = without_code(source)
    name, _, revision = at.partition("@")
    try:
        if (folder := _cached_snapshot(source)) is not None:
            return folder
        # One request with a time limit first: the download functions retry an unreachable hub for half a minute.
        info = HfApi().model_info(name, revision=revision or None, timeout=HUB_SECONDS)
        if getattr(info, "gated", False):  # its page is open to all, its files are not
            HfApi().auth_check(name)
        if not download:
            return None
        safe = any(s.rfilename.endswith(".safetensors") for s in info.siblings or ())
        files = [*FILES, *([] if safe else ["*.bin"]), *(["*.py"] if runs_code(source) else [])]
        return Path(snapshot_download(name, revision=info.sha, allow_patterns=files))
    except GatedRepoError as error:  # a kind of RepositoryNotFoundError
        raise EncoderError(
            f"encoder {at!r}: gated: accept its terms on the hub, then `hf auth login`, or set HF_TOKEN (on a cluster "
            "on every node)"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        what = "revision" if isinstance(error, RevisionNotFoundError) else "model"
        private = ", or it is private: set HF_TOKEN" if isinstance(error, RepositoryNotFoundError) else ""
        raise EncoderError(
            f"encoder {at!r}: no such {what} on the hub and no folder of that name here; check the spelling{private}"
        ) from error
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        raise EncoderError(
            f"encoder {at!r}: not in the local cache and the hub cannot be reached ({type(error).__name__}); "
            "download it on a machine with network and give its folder"
        ) from error


def folder_revision(folder: Path, *, code: bool = False) -> dict[str, str]:
    """Hashes of an encoder's folder: `files`, of its configuration and tokenizer (and code), and `weights`.

    They are of the files' names and contents, so that they agree between machines and library versions. Of a large
    file of weights 16 pieces of 1 MiB are read, spread over it: training changes all of them. A snapshot in the hub's
    cache also has its `commit`, because other programs add files of that commit to it.
    """
    files, patterns = [file for file in sorted(folder.iterdir()) if file.is_file()], [*NOT_WEIGHTS, *["*.py"] * code]
    weights = [file for file in files if file.suffix == ".safetensors"]
    weights = weights or [file for file in files if file.suffix == ".bin"]
    others = [file for file in files if file not in weights and any(file.match(name) for name in patterns)]
    found = {"files": hash_of(others, whole=True), "weights": hash_of(weights, whole=False)}
    commit = folder.name if folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", folder.name) else ""
    return found | ({"commit": commit} if commit else {})


def hash_of(files: Iterable[Path], whole: bool) -> str:
    """Hash of the files' names, sizes and contents; whole: False reads 16 MiB of a larger file."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        for piece in _pieces(file, whole):
            digest.update(piece)
    return digest.hexdigest()[:32]


def _pieces(file: Path, whole: bool) -> Iterator[bytes]:
    size = file.stat().st_size
    if whole or size <= PIECES * MIB:
        yield file.read_bytes()
        return
    with file.open("rb") as content:
        for number in range(PIECES):  # the first and the last MiB among them
            content.seek(number * (size - MIB) // (PIECES - 1))
            yield content.read(MIB)
