"""What a method trains: the `Network` interface, and the transformer encoder with pooling and head of all methods but
GCLSR (methods 1.2-1.4, 1.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig, values
from trainables.contract.errors import EncoderError
from trainables.data.tokens import Tokens
from trainables.encoders.adapters import share_frozen_weights
from trainables.encoders.facts import unfit
from trainables.encoders.forward import Interface, enable_checkpointing, packed_encoder, padded_states
from trainables.encoders.heads import MlmHead, make_head
from trainables.encoders.load import LoadedEncoder, trained_model
from trainables.encoders.packing import Packed, pack, to_device
from trainables.encoders.trunk import ChangeEmbeddings
from trainables.encoders.words_in_use import keep_words, used_ids

Views = Mapping[str, Sequence[Tokens]]  # role ("anchor", "positive", ...) -> one sequence per example
Encoded = Mapping[str, Tensor]  # role -> (N, D) vectors of the global batch, any norm
FROM_FIRST_TOKEN = ("cls", "cls_before_pooler", "pretrained_pooler")
AVERAGES = ("avg", "avg_first_last", "avg_top2")
TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}  # in `embed`: large enough to fill the device, small enough for caches


class Network(nn.Module, ABC):
    """A sentence encoder in training.

    whole_batch: names of the modules that `project` runs on the gathered batch. Every worker computes their full
        gradient, while the gradients of all other modules are sums over the workers' shares.
    """

    whole_batch: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, views: Views) -> dict[str, Tensor]:
        """Training-mode vectors per role, (N, H), before any head; one forward pass over all roles."""

    @abstractmethod
    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """Heads, applied to the global batch (so that batch-norm sees all workers' examples)."""

    @abstractmethod
    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """Evaluation-time vectors (n, D) in the given order, no gradient."""

    def own_loss(self, views: Views, pooled: Mapping[str, Tensor], rng: np.random.Generator) -> Tensor | None:
        """A term that the network adds to its method's loss on a worker's share, () and weighted; None = no term.

        pooled: result of `encode` for these views, with its gradient.
        """
        del views, pooled, rng
        return None

    def move_to_device(self, device: torch.device, bf16: bool) -> None:
        """Move to the device that trains; bf16: whether matrix products run in bf16 there."""
        share_frozen_weights(self, device, bf16)
        self.to(device)

    def after_step(self) -> None:
        """Update what has no gradient: a momentum encoder, a queue. Called after every optimiser step."""


class SentenceNetwork(Network):
    """Encoder, pooling and head of a configuration.

    Args:
        config: of the trial.
        loaded: the encoder, read once per process.
        seed: decides the new weights (head, missing MLM head), alone.

    Attributes:
        encoder: the Hugging Face model (a copy); head: on pooling `cls`, or None; mlm_head: when mlm_weight > 0.
        packing_note: why batches are padded, "" when they are packed.
        longest: tokens of a text at most in evaluations, special tokens included.
    """

    whole_batch = ("head",)
    encoder: Any
    head: nn.Module | None
    mlm_head: MlmHead | None

    def __init__(self, config: EncoderConfig, loaded: LoadedEncoder, seed: int) -> None:
        super().__init__()
        own = loaded.config
        if problems := unfit(loaded.facts, loaded.source, {k: [v] for k, v in values(config).items()}):
            raise EncoderError("; ".join(f"{name}: {message}" for name, message in problems))
        self.longest = config.eval_max_length or loaded.facts.evaluated_length
        self.pooling, self.dropout, self.max_length = config.pooling, config.dropout, config.max_length
        self.head_at_test = config.head_at == "train_and_test"
        self.mlm_weight, self.mlm_probability = config.mlm_weight, config.mlm_probability
        self.prefix, self.suffix = loaded.prefix, loaded.suffix
        self.prompts = {} if config.include_prompt or config.pooling not in AVERAGES else loaded.prompts
        self.mask_token = loaded.tokenizer.mask_token_id
        self.packing_note = loaded.packing_note
        self.encoder = trained_model(loaded, config, seed)
        self.wanted = wanted_states(config.pooling, own.num_hidden_layers)
        std = getattr(own, "initializer_range", 0.02)
        self.head = make_head(config.head if config.pooling == "cls" else "none", own.hidden_size, seed, std)
        self.mlm_head = None
        if config.mlm_weight:
            words = tuple(self.encoder.get_input_embeddings().weight.shape)
            eps = getattr(own, "layer_norm_eps", 1e-12)
            self.mlm_head = MlmHead(own.hidden_size, words, loaded.mlm_head, seed + 1, eps, std)
        self._packed_encoder = None if self.packing_note else packed_encoder(self.encoder)
        if isinstance(self._packed_encoder, Interface) and config.checkpointing:
            enable_checkpointing(self.encoder, packed=True)
        self._source = loaded
        all_trained = config.lora_rank == 0 and config.freeze is None
        self._few_words = all_trained and not config.mlm_weight  # the MLM term reads every row of the table

    def keep_words(self, tokens: Iterable[NDArray[Any]]) -> None:
        """Train only the rows of a large table of word embeddings that these tokens use, see `words_in_use`.

        Args:
            tokens: ids laid end to end; the special tokens need not be among them.
        """
        if not self._few_words:
            return
        tokenizer, whole = self._source.tokenizer, self._source.model.get_input_embeddings().weight.detach()
        special = [*tokenizer.all_special_ids, *self.prefix, *self.suffix, self._source.config.pad_token_id or 0]
        if keep_words(self.encoder, whole, used_ids(len(whole), tokens, special)):
            self._packed_encoder = None if self.packing_note else packed_encoder(self.encoder)

    def encode(self, views: Views) -> dict[str, Tensor]:
        """Vectors per role before any head, (N, H) float32; one pass over all roles, each with its own dropout."""
        vectors = self._pooled(self._pack([tokens for rows in views.values() for tokens in rows]))
        sizes = [len(rows) for rows in views.values()]
        return dict(zip(views, torch.split(vectors, sizes), strict=True))

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """The head on all roles together, as SimCSE and DiffCSE apply it: batch-norm sees them as one batch."""
        if self.head is None:
            return pooled
        with torch.autocast(self.device.type, enabled=False):  # a head is small: exact costs nothing
            projected = self.head(torch.cat(list(pooled.values())))
        return dict(zip(pooled, torch.split(projected, [len(v) for v in pooled.values()]), strict=True))

    @torch.no_grad()
    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """Evaluation-time vectors (n, D) float32, in the given order, on the network's device.

        Each distinct sequence is encoded once, in batches sorted by length. Sequences are truncated to
        `eval_max_length` (methods 7.1); max_length applies to training. The head is applied only with head_at
        `train_and_test` (methods 1.4). The network's mode does not change.
        """
        distinct = {s.tobytes(): s for s in sequences}
        keys = sorted(distinct, key=len)
        position = {key: i for i, key in enumerate(keys)}
        lengths = np.minimum([len(distinct[key]) for key in keys], self.longest) + 2  # two special tokens
        run = np.cumsum(lengths) // TOKENS_AT_ONCE.get(self.device.type, TOKENS_AT_ONCE["cpu"])
        training = self.training
        self.eval()
        try:
            parts = [
                self._evaluated([distinct[keys[i]] for i in chunk])
                for chunk in np.split(np.arange(len(keys)), np.flatnonzero(np.diff(run)) + 1)
            ]
        finally:
            self.train(training)
        rows = torch.tensor([position[s.tobytes()] for s in sequences], device=self.device)
        return torch.cat(parts).index_select(0, rows)

    def own_loss(self, views: Views, pooled: Mapping[str, Tensor], rng: np.random.Generator) -> Tensor | None:
        """The weighted masked-language-model term (`mlm_loss`), None with mlm_weight 0."""
        del pooled
        return self.mlm_weight * self.mlm_loss(views, rng) if self.mlm_weight else None

    def mlm_loss(self, views: Views, rng: np.random.Generator) -> Tensor:
        """Masked-language-model term on all views: mean cross-entropy over the masked tokens (methods 1.6).

        Args:
            views: as in `encode`; rng: draws the masked tokens and their replacements.
        Returns: () scalar; 0 when no token was drawn.
        """
        if self.mlm_head is None:
            raise ValueError("mlm_loss: expected mlm_weight > 0 in the configuration, got 0")
        packed = self._pack([tokens for rows in views.values() for tokens in rows])
        words = self.encoder.get_input_embeddings()
        ordinary = special_free(packed, len(self.prefix), len(self.suffix))
        ids, chosen = mask_tokens(
            packed.ids, ordinary, self.mlm_probability, self.mask_token, words.num_embeddings, rng
        )
        (last,) = self._states(replace(packed, ids=ids), (self.encoder.config.num_hidden_layers,)).values()
        logits = self.mlm_head(last.index_select(0, chosen), words.weight).float()
        return F.cross_entropy(logits, packed.ids.index_select(0, chosen), reduction="sum") / max(len(chosen), 1)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def _pack(self, sequences: Sequence[Tokens]) -> Packed:
        longest = self.max_length if self.training else self.longest
        packed = pack(sequences, longest, self.prefix, self.suffix, self.device)
        if not self.prompts:
            return packed
        begun = np.array([self._prompt_length(sequences[i]) for i in packed.order.tolist()])
        return replace(packed, left_out=np.minimum(begun, packed.lengths - 1))

    def _prompt_length(self, tokens: Tokens) -> int:
        """How many tokens at the beginning, special ones included, are not averaged: those of its prompt."""
        return next((n for ids, n in self.prompts.items() if tuple(tokens[: len(ids)].tolist()) == ids), 0)

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        """Encode as in training, but without dropout."""
        dropout, self.dropout = self.dropout, 0.0
        mode = self.encoder.training
        self.encoder.eval()
        try:
            yield
        finally:
            self.dropout = dropout
            self.encoder.train(mode)

    def _states(
        self,
        packed: Packed,
        wanted: Sequence[int],
        first_tokens_only: bool = False,
        change: ChangeEmbeddings | None = None,
    ) -> dict[int, Tensor]:
        if self._packed_encoder is not None:
            dropout = self.dropout if self.training else 0.0
            return self._packed_encoder.states(packed, wanted, dropout, first_tokens_only, change)
        states = padded_states(self.encoder, packed, wanted, change)
        return {n: s.index_select(0, packed.first) for n, s in states.items()} if first_tokens_only else states

    def _pooled(self, packed: Packed, change: ChangeEmbeddings | None = None) -> Tensor:
        """(N, H) float32 in the order the sentences were given."""
        first_only = self.pooling in FROM_FIRST_TOKEN
        states = self._states(packed, self.wanted, first_only, change)
        if self.pooling in AVERAGES:
            vectors = average(states, packed)
        else:
            (vectors,) = states.values()
        if self.pooling == "pretrained_pooler":
            vectors = pretrained_pooler(self.encoder, vectors)
        elif self.pooling == "last":
            vectors = vectors.index_select(0, packed.last)
        return packed.restore(vectors if vectors.dtype == torch.float64 else vectors.float())

    def _evaluated(self, sequences: Sequence[Tokens]) -> Tensor:
        vectors = self._pooled(self._pack(sequences))
        if self.head is None or not self.head_at_test:
            return vectors
        with torch.autocast(self.device.type, enabled=False):
            head: Tensor = self.head(vectors)
        return head


def wanted_states(pooling: str, layers: int) -> tuple[int, ...]:
    """Numbers of the hidden states that a pooling reads (0 = embedding layer, `layers` = last layer).

    The first of `avg_first_last` is the first transformer layer, not the embedding layer (D01).

    Raises: ValueError for an unknown pooling.
    """
    if pooling in FROM_FIRST_TOKEN or pooling in ("avg", "last"):
        return (layers,)
    if pooling == "avg_first_last":
        return (1, layers)
    if pooling == "avg_top2":
        return (layers - 1, layers)
    raise ValueError(f"pooling: expected one of {', '.join((*FROM_FIRST_TOKEN, 'last', *AVERAGES))}, got {pooling!r}")


def average(states: Mapping[int, Tensor], packed: Packed) -> Tensor:
    """Mean over layers, then over each sentence's tokens, special tokens included (D02), without those left out.

    Args:
        states: layer number -> (T, H), the `wanted_states`.
        packed: where each of its N sentences lies in the T tokens.
    Returns: (N, H) float32 (or float64), in the packed order.
    """
    layers = [s if s.dtype == torch.float64 else s.float() for s in states.values()]
    tokens = layers[0] if len(layers) == 1 else torch.stack(layers).mean(0)
    sentence, lengths = packed.sentence, packed.lengths_tensor
    if packed.left_out is not None:
        tokens, sentence = (values.index_select(0, packed.averaged) for values in (tokens, sentence))
        lengths = lengths - to_device(packed.left_out, lengths.device)
    sums = tokens.new_zeros(len(packed), tokens.shape[1]).index_add(0, sentence, tokens)
    return sums / lengths.to(tokens.dtype)[:, None]


def pretrained_pooler(encoder: Any, vectors: Tensor) -> Tensor:
    """(N, H) states of first tokens through the encoder's own pooler.

    BERT's reads the first of (N, T, H) states. In ALBERT and BigBird it is a bare linear layer, with tanh elsewhere.
    """
    if isinstance(encoder.pooler, nn.Linear):
        return torch.tanh(encoder.pooler(vectors))
    return cast(Tensor, encoder.pooler(vectors[:, None]))


def special_free(packed: Packed, before: int, after: int) -> NDArray[np.int64]:
    """Numbers of the tokens that are not among the first `before` or the last `after` of their sentence."""
    left = np.arange(len(packed.ids)) - np.repeat(packed.starts, packed.lengths)
    right = np.repeat(packed.lengths, packed.lengths) - left
    return np.flatnonzero((left >= before) & (right > after))


def mask_tokens(
    ids: Tensor,
    candidates: NDArray[np.int64],
    probability: float,
    mask_token: int,
    words: int,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """BERT's masking: of the chosen tokens 80 % become the mask token, 10 % a random one, 10 % stay (methods 1.6).

    Draws on the host without reading the ids, so that it does not wait for the device.

    Args:
        ids: (T,) token ids, left untouched; candidates: numbers of the tokens that may be chosen.
        probability: of a candidate to be chosen; mask_token: its id; words: size of the vocabulary.
    Returns: (T,) new ids; (M,) numbers of the chosen tokens, ascending; both on the ids' device.
    """
    chosen = candidates[rng.random(len(candidates)) < probability]
    fate = rng.random(len(chosen))
    new = np.full(len(chosen), mask_token, np.int64)
    random = (fate >= 0.8) & (fate < 0.9)
    new[random] = rng.integers(0, words, int(random.sum()))

    changed = fate < 0.9
    positions, replacements = (to_device(array[changed], ids.device) for array in (chosen, new))
    return ids.index_copy(0, positions, replacements), to_device(chosen, ids.device)
