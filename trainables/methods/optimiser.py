"""The optimiser of most methods: AdamW with clipped gradients and a schedule (methods 1.7)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.linalg import vector_norm as norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from trainables.contract.config import EncoderConfig
from trainables.encoders.adapters import layers_below_top


def parameter_groups(network: nn.Module, config: EncoderConfig) -> list[dict[str, Any]]:
    """The trained parameters with their learning rates, one group for each; the highest first."""
    trained = [p for p in network.parameters() if p.requires_grad]
    if config.layer_decay == 1:
        return [{"params": trained}]
    below, found = layers_below_top(network), dict[int, list[nn.Parameter]]()
    for p in trained:
        found.setdefault(below[id(p)], []).append(p)
    return [{"params": found[n], "lr": config.learning_rate * config.layer_decay**n} for n in sorted(found)]


def clip_gradients(network: nn.Module, tables: Collection[int], most: float) -> None:
    """Scale the gradients of all parameters so that their common norm is at most `most`.

    Args:
        tables: ids of embedding tables; their norm is summed over rows in float64, so that rows without gradient do not
            change its last digit: a trial that holds only the words in use equals one that holds all.
    """
    gradients = [(id(p) in tables, p.grad) for p in network.parameters() if p.grad is not None]
    sizes = [norm(norm(g, dim=1).double()).to(g.dtype) if is_table else g for is_table, g in gradients]
    total = torch.nn.utils.get_total_norm(sizes, foreach=True)
    torch.nn.utils.clip_grads_with_norm_(network.parameters(), most, total, foreach=True)


def decay(shape: str, step: int, steps: int, warmup: int = 0) -> float:
    """Factor on the peak learning rate at `step` (0-based) of `steps`: linear warm-up, then the shape down to 0.

    Args:
        shape: "linear", "cosine" or "constant" after warm-up.
        step: 0 <= step; beyond `steps` the last value holds.
        warmup: steps of linear rise from 0; the first step of a warm-up has factor 0, as in transformers.
    """
    if step < warmup:
        return step / warmup
    if shape == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def adamw(network: nn.Module, config: EncoderConfig, steps: int, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
    """AdamW with betas 0.9/0.999, eps 1e-8, one parameter group but for `layer_decay` (methods 1.7), and the schedule.

    Before each step the gradients of all of the network's parameters are clipped to norm `max_grad_norm`, if any.

    Args:
        steps: optimiser steps of the whole run; the schedule ends there.
        steps_per_epoch: not used by these schedules.
    """
    del steps_per_epoch
    optimiser = torch.optim.AdamW(
        parameter_groups(network, config),
        lr=config.learning_rate,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=config.weight_decay,
        fused=True,  # one pass over the weights instead of a dozen
    )
    if config.max_grad_norm:
        tables = {id(part.weight) for part in network.modules() if isinstance(part, nn.Embedding)}

        def clip(*_: object) -> None:
            clip_gradients(network, tables, config.max_grad_norm)

        optimiser.register_step_pre_hook(clip)
    warmup = round(config.warmup_share * steps)
    return optimiser, LambdaLR(optimiser, lambda step: decay(config.lr_decay, step, steps, warmup))
