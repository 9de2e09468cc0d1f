"""Dropout wherever a family keeps its probability, and the share that a training pass really drops.

BERT's family keeps p in `nn.Dropout` modules. Newer ones copy it from the configuration into float attributes of their
attention modules (`attention_dropout`) when they are built, where a walk over `nn.Dropout` never comes. So p is set in
every place, and then measured (`Watch`), since the next family may have yet another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NOT_ENCODING = ("classifier", "summary", "layerdrop", "layer_drop", "drop_path", "path_drop")
SIGMAS = 6.0  # how far a measured share may lie from p: one false alarm in 5e8 places


def set_dropout(model: nn.Module, p: float) -> None:
    """Make p the probability of every dropout of a model: modules, float attributes of modules, configurations."""
    holders: list[Any] = []
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = p
        holders += [part, getattr(part, "config", None)]
    for holder in {id(holder): holder for holder in holders if hasattr(holder, "__dict__")}.values():
        for name in keys(holder):
            setattr(holder, name, p)


def keys(holder: Any) -> list[str]:
    """Names of the dropout probabilities that a module or a configuration keeps as plain numbers."""
    return [
        name
        for name, value in vars(holder).items()
        if "drop" in name
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not any(other in name for other in _NOT_ENCODING)
    ]


@dataclass(frozen=True)
class Place:
    """One dropout that ran: of attention probabilities or not, its values and how many of them it set to zero."""

    attention: bool
    values: int
    dropped: int

    def fits(self, p: float) -> bool:
        """Whether the measured share is p, as far as so many draws can tell."""
        spread = math.sqrt(p * (1 - p) / max(self.values, 1))
        return abs(self.dropped / max(self.values, 1) - p) <= SIGMAS * spread + 2**-15


@dataclass
class Watch(TorchFunctionMode):
    """While it is entered, every dropout that runs is counted. What is inside a fused attention is drawn once more."""

    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            before = args[0] if args else kwargs["input"]
            alive, attention = before != 0, _is_attention(before)
            out = func(*args, **kwargs)
            self.places.append(Place(attention, int(alive.sum()), int((alive & (out == 0)).sum())))
            return out
        if func is F.scaled_dot_product_attention:
            self.places.append(_inside(*args, **kwargs))
        return func(*args, **kwargs)


def count(watch: Watch | None, attention: bool, noise: Tensor) -> None:
    """Count the factors that an attention of ours multiplies with."""
    if watch is not None:
        watch.places.append(Place(attention, noise.numel(), int((noise == 0).sum())))


def _inside(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Place:
    """What a fused attention drops: with the identity for values, its output is the attention probabilities."""
    del value
    length = key.shape[-2]
    unit = torch.eye(length, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], length, length)
    if len(args) > 1:
        kwargs = {**kwargs, "dropout_p": args[1]}
        args = (*args[:1], None, *args[2:])
    p = kwargs.pop("dropout_p", 0.0)
    given = dict(zip(("attn_mask", "_", "is_causal", "scale"), args, strict=False))
    given = {name: v for name, v in given.items() if name != "_"} | kwargs
    with torch.no_grad():
        probs = F.scaled_dot_product_attention(query, key, unit, **given)
        left = F.scaled_dot_product_attention(query, key, unit, dropout_p=p, **given)
    alive = probs > 0
    return Place(True, int(alive.sum()), int((alive & (left == 0)).sum()))


def _is_attention(values: Tensor) -> bool:
    """Rows that sum to one: probabilities."""
    if values.dim() < 3 or not values.is_floating_point():
        return False
    sums = values.detach().float().sum(-1)
    return bool((values >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
