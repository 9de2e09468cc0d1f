"""What most methods share: token columns, shuffled epochs, a transformer with AdamW (SimCSE's way, methods 1.7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.linalg import vector_norm as norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from trainables.contract.config import EncoderConfig, RunConfig
from trainables.contract.errors import DataError
from trainables.contract.streams import SAMPLE, SHUFFLE
from trainables.data.tokens import StoredTexts, Texts
from trainables.encoders.adapters import layers_below_top
from trainables.encoders.network import Encoded, Network, Views
from trainables.methods.method import Batch, Examples, TextTools, Untrained
from trainables.methods.schedules import decay

if TYPE_CHECKING:
    from trainables.encoders.load import LoadedEncoder


def tokenised_sentences(texts: Texts, config: RunConfig, seed: int, tools: TextTools) -> Examples:
    """One column "sentence". An empty line becomes a single blank (methods 2.1)."""
    del config, seed
    sentences = texts["sentence"]
    whole = sentences if isinstance(sentences, StoredTexts) else [s or " " for s in sentences]
    return Examples({"sentence": tools.tokenise(whole, "query")})


def tokenised_triplets(texts: Texts, config: RunConfig, seed: int, tools: TextTools) -> Examples:
    """Columns "anchor", "positive", "negative" of NLI-like triplets (methods 2.2); "negative_2" ... if there are."""
    del config, seed
    kinds = {role: "query" if role == "anchor" else "document" for role in texts}
    return Examples({role: tools.tokenise(texts[role], kind) for role, kind in kinds.items()})


def sampled(n: int, config: RunConfig, seed: int) -> NDArray[np.int64]:
    """The example numbers of a run: a random sample of `sample_size` of n, in file order, or all if there are fewer.

    That several values of a search are all of them is said by the check of its space.
    """
    if config.sample_size is None or config.sample_size >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, SAMPLE]).choice(n, config.sample_size, replace=False))


def shuffled_epochs(examples: Examples, config: RunConfig, seed: int) -> Iterator[Batch]:
    """Batches: every epoch a new permutation, the last smaller batch kept (if it has 2 examples)."""
    chosen = sampled(len(examples), config, seed)
    for epoch in range(config.epochs):
        order = np.random.default_rng([seed, SHUFFLE, epoch]).permutation(chosen)
        for start in range(0, len(order), config.batch_size):
            batch = order[start : start + config.batch_size]
            if len(batch) > 1:  # a single example has no negatives: loss 0, batch-norm undefined
                yield Batch(batch, epoch)


MASK_TOKENS = ("[MASK]", "<mask>")  # BERT's and RoBERTa's family


def mask_text(tools: TextTools) -> str:
    """The mask token as it is written in texts. Raises: DataError if the tokenizer has none that is known here."""
    for text in MASK_TOKENS:
        if len(tools.tokenise([text])[0]) == 1:
            return text
    raise DataError(f"expected a tokenizer with one of {', '.join(MASK_TOKENS)}, found neither")


def triplet_views(examples: Examples, batch: Batch, config: object, rng: np.random.Generator) -> Views:
    """Premise, entailed and contradicted hypothesis (SimCSE Sec. 4), of which there may be several."""
    del config, rng
    return {role: column.take(batch) for role, column in examples.columns.items()}


def is_negative(role: str) -> bool:
    """Whether a column or view is of hard negatives: `negative`, `negative_2` ..."""
    return role.startswith("negative")


def negatives(z: Encoded) -> torch.Tensor:
    """(kN, D) vectors of all hard negatives, one kind after the other: row i of each N belongs to anchor i."""
    return torch.cat([vectors for role, vectors in z.items() if is_negative(role)])


def sentence_network(config: EncoderConfig, source: LoadedEncoder, seed: int) -> Network:
    """A transformer encoder with pooling and head."""
    from trainables.encoders.network import SentenceNetwork

    return SentenceNetwork(config, source, seed)


def plain_encoder(config: EncoderConfig, source: LoadedEncoder, seed: int = 0) -> Network:
    """The encoder as it came, pooled as the configuration says, without a head."""
    del seed
    plain = replace(config, head="none", head_at="train_only", mlm_weight=0.0, dropout=0.0, lora_rank=0, freeze=None)
    return sentence_network(plain, source, seed=0)


PLAIN_ENCODER = Untrained(plain_encoder, reads=("pooling", "bidirectional"))


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
            change its last digit, and a trial of the words in use is a trial of all.
    """
    gradients = [(id(p) in tables, p.grad) for p in network.parameters() if p.grad is not None]
    sizes = [norm(norm(g, dim=1).double()).to(g.dtype) if is_table else g for is_table, g in gradients]
    total = torch.nn.utils.get_total_norm(sizes, foreach=True)
    torch.nn.utils.clip_grads_with_norm_(network.parameters(), most, total, foreach=True)


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
