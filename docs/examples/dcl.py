"""Decoupled contrastive learning on SimCSE's views: no positive in the denominator (arXiv:2110.06848, Eq. 6)."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from trainables.contract import Declaration, EncoderConfig, hyperparameter
from trainables.methods.method import Method


@dataclass(frozen=True, kw_only=True)
class DclConfig(EncoderConfig):
    decoupled: bool = hyperparameter(True, "false: the positive stays in the denominator, which is NT-Xent")


def views(examples, batch, config, rng):
    del config, rng  # every sentence twice, and its copies draw their own dropout masks
    sentences = examples.columns["sentence"].take(batch)
    return {"anchor": sentences, "positive": sentences}


def loss(z, config):  # z: role -> (N, D) vectors of the global batch
    n, both = len(z["anchor"]), F.normalize(torch.cat([z["anchor"], z["positive"]]), dim=1)
    logits = both @ both.T / config.temperature
    left_out = torch.eye(n).repeat(2, 2) if config.decoupled else torch.eye(2 * n)
    negatives = logits.masked_fill(left_out.bool().to(logits.device), -torch.inf).logsumexp(dim=1)
    return negatives.mean() - logits.diagonal(n).mean()


METHOD = Method(
    declaration=Declaration(name="dcl", config=DclConfig, columns="sentences"),
    views=views,
    loss=loss,
)  # defaults: tokenised sentences, shuffled epochs, a transformer with pooling and head, AdamW
