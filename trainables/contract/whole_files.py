"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into; it takes the place of `path` when the block ends well, and leaves nothing if it fails.

    No reader ever sees half of it, whatever ends the process. The folder must be there.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)  # a full disk must not keep the half file
        raise
