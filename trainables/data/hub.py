"""Data sets of the Hugging Face hub at a pinned commit: `hub:owner/name@<40 hexadecimal digits>`. No torch.

What was fetched once stays in the hub's cache: a later run needs no network.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.contract.errors import DataError

PREFIX = "hub:"
SECONDS = 10.0  # how long the hub may take to answer before it counts as unreachable
_NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})((?::[\w.-]+){0,2})")


@dataclass(frozen=True)
class HubName:
    """A data set repository at a commit. parts: what follows it, `config` and `split` of a table; empty = the whole."""

    repo: str
    commit: str
    parts: tuple[str, ...] = ()

    @property
    def revision(self) -> str:
        return f"{self.repo}@{self.commit}"


def is_hub(name: str) -> bool:
    """Whether a `data:` entry names a repository on the hub."""
    return name.startswith(PREFIX)


def hub_name(name: str) -> HubName:
    """`hub:owner/name@commit[:config][:split]` taken apart.

    Raises: DataError for anything else: a branch or tag can move, and with it the data.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise DataError(
            f"{name!r}: expected hub:owner/name@commit (or ...@commit:config:split), the commit as 40 hexadecimal "
            "digits: a branch can move, and with it the data"
        )
    return HubName(found[1], found[2], tuple(part for part in found[3].split(":") if part))


def check_hub_name(name: str, *, whole: bool) -> None:
    """That a name is of a whole repository (a retrieval set), or of a split of a table.

    Raises: DataError as `hub_name`, or if the split is missing.
    """
    if not hub_name(name).parts and not whole:
        raise DataError(f"{name!r}: expected hub:owner/name@commit:split or ...@commit:config:split, got no split")


def snapshot(name: HubName, patterns: Sequence[str], *, download: bool = True) -> Path:
    """The folder of a repository's files that match the patterns: the cache's, else fetched.

    Args:
        download: False = only ask whether the repository is there.
    Raises: DataError in one line if the hub cannot be reached or has no such repository, commit or file.
    """
    from huggingface_hub import HfApi, snapshot_download

    where = {"repo_id": name.repo, "repo_type": "dataset", "revision": name.commit}
    try:
        cached = Path(snapshot_download(**where, allow_patterns=list(patterns), local_files_only=True))
        there = [p.relative_to(cached).as_posix() for p in cached.rglob("*")]
        found = [name for name in there if any(fnmatch.fnmatch(name, g) for g in patterns)]
        if found and not _shards_lack(found):
            return cached
    except FileNotFoundError:  # huggingface_hub's "not in the cache" is one
        pass
    try:
        # One question with a time limit first: the download functions retry an unreachable hub for half a minute.
        info = HfApi().dataset_info(name.repo, revision=name.commit, timeout=SECONDS)
        files = [s.rfilename for s in info.siblings or ()]
        if not any(fnmatch.fnmatch(f, g) for f in files for g in patterns):
            raise DataError(f"it has no file {' or '.join(patterns)}")
        return Path(snapshot_download(**where, allow_patterns=list(patterns))) if download else Path()
    except Exception as error:  # hub, HTTP client and operating system errors have no common base class
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"data set {PREFIX}{name.revision[: len(name.repo) + 13]}: not in the cache, and from the hub: "
            f"{reason[:200]}; check the name and the network"
        ) from error


def _shards_lack(names: Sequence[str]) -> bool:
    """Whether of a table in `train-00000-of-00003.parquet` and so on some are not among the names: others may have
    fetched one alone."""
    parts = [match for name in names if (match := re.search(r"(.*)-\d+-of-(\d+)(\.\w+)+$", name))]
    counts = Counter((match[1], int(match[2])) for match in parts)
    return any(count < whole for (_, whole), count in counts.items())
