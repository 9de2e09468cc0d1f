"""`method: script`. Its hyperparameters are what a space declares. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from trainables.contract.config import Settings
from trainables.contract.declaration import OWN_ENCODER, Declaration


@dataclass(frozen=True, kw_only=True)
class ScriptConfig(Settings):
    """No hyperparameter is ours."""


SCRIPT = Declaration(
    name="script",
    config=ScriptConfig,
    encoders=OWN_ENCODER,
    runner="trainables.scripts.trial:train_by_script",
    scripted=True,
)
