"""What passes between a search and its trials: declarations, configurations, specs, names. No torch.

A plugin needs only the names below, and `trainables.methods.method`.
"""

from trainables.contract.config import EncoderConfig, RunConfig, hyperparameter
from trainables.contract.declaration import Declaration, DevEvaluation, Preset

__all__ = ["Declaration", "DevEvaluation", "EncoderConfig", "Preset", "RunConfig", "hyperparameter"]
