"""Checkpoints of other versions: an older one is read, a newer one is refused in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.checkpoints.trained import read_spec
from analysis.errors import AnalysisError
from trainables.contract import formats
from trainables.contract.formats import NewerFormatError
from trainables.contract.trial import STATE, TRIAL
from trainables.training.checkpoint import TrialFiles

NEWER = {formats.FORMAT: formats.CHECKPOINT + 1, formats.VERSION: "7.1.0"}
TOLD = "written by contrastive-search 7.1.0, format 2; this is"


def test_newer_checkpoint_format_is_rejected_and_older_one_read(tmp_path: Path) -> None:
    files = TrialFiles(str(tmp_path))
    files.save_last({"step": torch.tensor(2)})
    files.save_best({"weight": torch.ones(2)}, {"spec": {}}, {"stsb": np.zeros(2, np.float32)})
    assert json.loads((tmp_path / TRIAL).read_text())[formats.FORMAT] == formats.CHECKPOINT
    assert torch.load(tmp_path / STATE)[formats.FORMAT] == formats.CHECKPOINT
    assert files.load_last() == {"step": torch.tensor(2)}
    for stamp in ({}, NEWER):
        buffer = io.BytesIO()
        torch.save({"step": torch.tensor(2), **stamp}, buffer)
        (tmp_path / STATE).write_bytes(buffer.getvalue())
        (tmp_path / TRIAL).write_text(json.dumps({"spec": {}, **stamp}))
        if not stamp:
            assert files.load_last() == {"step": torch.tensor(2)}
            assert files.load_best()[1] == {"spec": {}}
            continue
        for name, load in ((STATE, files.load_last), (TRIAL, files.load_best)):
            with pytest.raises(NewerFormatError, match=f"^{tmp_path}/{name}: {TOLD}"):
                load()
        with pytest.raises(AnalysisError, match=TOLD):
            read_spec(str(tmp_path))
