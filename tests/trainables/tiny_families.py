"""Tiny encoders of benchmarks.tiny_encoders, written once per test process."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from benchmarks.tiny_encoders import FAMILIES, Family, save_tiny
from trainables.encoders.load import LoadedEncoder, load_encoder

_FOLDER = tempfile.TemporaryDirectory(prefix="tiny-encoders-")


def family(model_type: str) -> Family:
    return next(f for f in FAMILIES if f.model_type == model_type)


@cache
def folder_of(model_type: str) -> Path:
    return save_tiny(family(model_type), Path(_FOLDER.name) / model_type)


@cache
def tiny(model_type: str) -> LoadedEncoder:
    return load_encoder(str(folder_of(model_type)))
