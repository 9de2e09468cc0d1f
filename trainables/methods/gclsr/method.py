"""GCLSR (Appl. Sci. 2023, 13, 9873): two augmentations of the word vectors, a TextCNN, a grouped loss, no negatives."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainables.contract.errors import DataError
from trainables.contract.trial import AUGMENT
from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded
from trainables.encoders.word_vectors import WordVectors
from trainables.methods.gclsr import gclsr_loader
from trainables.methods.gclsr.config import GCLSR, TEXTCNN_WIDTH, GclsrConfig, back_translations
from trainables.methods.gclsr.network import GclsrNetwork
from trainables.methods.losses import grouped_cosine
from trainables.methods.method import (
    Batch,
    Examples,
    Method,
    TextTools,
    Untrained,
    all_columns,
    sampled,
    share_changed,
    shuffled_epochs,
    tokenised_sentences,
)
from trainables.methods.sda.edits import eda, wordnet

BATCH_UNIT = 128  # learning rates are given per this many examples


def prepare(texts: Texts, config: GclsrConfig, seed: int, tools: TextTools) -> Examples:
    """Column "sentence", and with sentence augmentation "augmented", made once a run.

    Fact: sentence_augmentation_share, of the sentences that it changed, in [0, 1].
    Raises: DataError without WordNet or words, or if the file of back-translations has none of the sentences.
    """
    columns = dict(tokenised_sentences(texts, config, seed, tools).columns)
    if config.sentence_augmentation == "none":
        return Examples(columns)
    sentences = list(texts["sentence"])
    if config.sentence_augmentation == "eda":
        check_words(sentences, tools.language)
        rng, synonyms = Random(f"{seed} {AUGMENT}"), wordnet(tools.language)
        changed = [" ".join(eda(s.split(), rng, config.eda_share, synonyms)) if s.split() else s for s in sentences]
    else:
        assert config.back_translations is not None
        known = back_translations(config.back_translations)
        changed = [known.get(s, s) for s in sentences]
        if not any(s in known for s in sentences):
            raise DataError(f"{config.back_translations}: has none of the training sentences")
    columns["augmented"] = tools.tokenise([s or " " for s in changed])
    return Examples(columns, facts={"sentence_augmentation_share": share_changed(sentences, changed)})


def check_words(sentences: Sequence[str], language: str) -> None:
    """Raises: DataError for Chinese without blanks between words, which EDA could not change."""
    if language == "zh" and sum(len(s.split()) > 1 for s in sentences) < len(sentences) / 2:
        raise DataError(
            "params.sentence_augmentation: eda changes words with blanks between them, and to it most of the training "
            "sentences are one word; put blanks between the words, or use back_translation"
        )


def plan(examples: Examples, config: GclsrConfig, seed: int) -> Iterator[Batch]:
    """Shuffled epochs; a last smaller batch is dropped, unless there is no other."""
    smallest = min(config.batch_size, len(sampled(len(examples), config, seed)))
    return (batch for batch in shuffled_epochs(examples, config, seed) if len(batch) >= smallest)


def loss(z: Encoded, config: GclsrConfig) -> Tensor:
    """Mean over pieces of -1/2 [cos(q1, sg(z2)) + cos(q2, sg(z1))] (6.5)."""
    size = TEXTCNN_WIDTH // config.num_groups if config.num_groups else config.group_size
    return grouped_cosine(z["q1"], z["z1"], z["q2"], z["z2"], size)


def learning_rates(peak: float, warmup: int, steps: int) -> list[float]:
    """Linear from 0 to `peak` over `warmup` steps, both ends included, then half a cosine towards 0 (6.6)."""
    rise: list[float] = np.linspace(0, peak, warmup).tolist()
    fall = steps - warmup
    return rise + [peak * 0.5 * (1 + math.cos(math.pi * i / fall)) for i in range(fall)]


class OfficialSchedule(LRScheduler):
    """The public code's schedule: learning rates and momentum of the groups "base" and "predictor" (6.6).

    The public loop sets row t after optimiser step t, so the first step runs at the optimiser's own rate (the peak, for
    the predictor too) and step t + 1 at row t. With `predictor_lr` the predictor's rate is constant from the second
    step on. Momentum changes with the first row after warm-up. A run that is cut short keeps the share of its warm-up.
    """

    def __init__(self, optimiser: Optimizer, config: GclsrConfig, steps: int) -> None:
        self.config = config
        self.warmup = round(steps * min(1.0, config.warmup_epochs / config.epochs))
        self.rates = learning_rates(optimiser.param_groups[0]["lr"], self.warmup, steps)
        super().__init__(optimiser)

    def get_lr(self) -> list[float | Tensor]:
        """Rates of the groups for the next optimiser step; sets their momentum."""
        groups = self.optimizer.param_groups
        if self.last_epoch == 0:
            return [group["lr"] for group in groups]
        row = min(self.last_epoch - 1, len(self.rates) - 1)
        momentum = self.config.momentum if row < self.warmup else self.config.momentum_after_warmup
        for group in groups:
            group["momentum"], group["nesterov"] = momentum, momentum > 0
        constant = self.config.predictor_lr
        return [constant if constant and group["name"] == "predictor" else self.rates[row] for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """The position; all else follows from configuration and steps."""
        return {"last_epoch": self.last_epoch, "_step_count": self._step_count, "_last_lr": self._last_lr}


def optimiser(
    network: nn.Module, config: GclsrConfig, steps: int, steps_per_epoch: int
) -> tuple[Optimizer, LRScheduler]:
    """SGD with Nesterov momentum and weight decay on all parameters, in two groups, and its schedule (6.6).

    Args:
        steps: optimiser steps of the whole run.
        steps_per_epoch: not used; warm-up is a share of `steps`.
    """
    del steps_per_epoch
    names = ("base", "predictor")
    parameters: dict[str, list[nn.Parameter]] = {name: [] for name in names}
    for name, parameter in network.named_parameters():
        parameters["predictor" if name.startswith("predictor.") else "base"].append(parameter)
    sgd = SGD(
        [{"name": name, "params": parameters[name]} for name in names],
        lr=config.base_lr * config.batch_size / BATCH_UNIT,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return sgd, OfficialSchedule(sgd, config, steps)


def export(network: nn.Module, config: GclsrConfig, source: WordVectors, language: str, folder: Path) -> None:
    """Write a trained network as a folder with its own loader (`gclsr_loader.py`).

    All words of the vector file go along: which ones a user's sentences need is not known here.
    """
    state = network.state_dict()
    tensors = {name.removeprefix("backbone."): t for name, t in state.items() if name.startswith("backbone.")}
    tensors |= {"padding": state["padding"], "vectors": torch.from_numpy(source.matrix)}
    # Not by `save_file`, which makes a file that only its owner reads.
    (folder / "model.safetensors").write_bytes(save({k: t.detach().cpu().contiguous() for k, t in tensors.items()}))
    (folder / "words.txt").write_text("\n".join(source.words), encoding="utf-8")
    content = {
        "model_type": "gclsr",
        "language": language,
        "region_sizes": list(config.region_sizes),
        "filters": config.filters,
        "max_words": config.max_words,
        "attention_at_eval": config.self_attention and config.attention_at_eval,
        "vector_seed": int(state["vector_seed"]),
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.copy(Path(gclsr_loader.__file__), folder / "gclsr_loader.py")


METHOD = Method(
    declaration=GCLSR,
    prepare=prepare,
    plan=plan,
    views=all_columns,  # what else differs between the two views is drawn in the network, by word vectors
    loss=loss,
    network=GclsrNetwork,
    optimiser=optimiser,
    untrained=Untrained(
        GclsrNetwork, reads=("region_sizes", "filters", "max_words", "self_attention", "attention_at_eval", "seed")
    ),
    prepared_from=("sentence_augmentation", "eda_share", "back_translations", "seed"),
    export=export,
)
