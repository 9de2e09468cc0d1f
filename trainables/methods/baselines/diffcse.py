"""DiffCSE (arXiv:2204.10298): SimCSE, and a discriminator that finds replaced tokens, given the sentence's vector.

A fixed generator fills in masked tokens. A second encoder, with the vector in the place of its first token, decides for
every token whether it was replaced (Eq. 2-3). The generator is the encoder as it came, with its own head for masked
tokens, where the authors take DistilBERT. The vector is taken before the head, one of the two places that their code
offers: so workers' gradients are those of one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.contract.errors import EncoderError
from trainables.encoders.forward import padded_states
from trainables.encoders.heads import MlmHead
from trainables.encoders.load import LoadedEncoder, make_model, trained_model
from trainables.encoders.network import Encoded, SentenceNetwork, Views, special_free
from trainables.encoders.packing import Packed, to_device
from trainables.encoders.trunk import ChangeEmbeddings, trunk_of
from trainables.methods.baselines.config import DIFFCSE, DiffcseConfig
from trainables.methods.losses import info_nce
from trainables.methods.method import Method, sentence_twice


class DiffcseNetwork(SentenceNetwork):
    """An encoder, a fixed generator, a discriminator.

    Raises: EncoderError if the tokenizer has no mask token.
    """

    def __init__(self, config: DiffcseConfig, loaded: LoadedEncoder, seed: int) -> None:
        super().__init__(config, loaded, seed)
        if self.mask_token is None:
            raise EncoderError(f"method diffcse: expected a tokenizer with a mask token, {loaded.source} has none")
        own = loaded.config
        eps = getattr(own, "layer_norm_eps", 1e-12)
        self.share, self.weight = config.mask_share, config.difference_weight
        self.generator = make_model(loaded, 0.0).requires_grad_(False)
        words = tuple(self.encoder.get_input_embeddings().weight.shape)
        self.generator_head = MlmHead(own.hidden_size, words, loaded.mlm_head, seed + 1, eps).requires_grad_(False)
        self.discriminator = trained_model(loaded, replace(config, pooling="cls"), seed + 3)
        self.detector = nn.Linear(own.hidden_size, 2)
        nn.init.normal_(self.detector.weight, std=0.02, generator=torch.Generator().manual_seed(seed + 2))
        nn.init.zeros_(self.detector.bias)

    def own_loss(self, views: Views, pooled: Mapping[str, Tensor], rng: np.random.Generator) -> Tensor | None:
        """lambda times the replaced-token detection loss, and what `SentenceNetwork.own_loss` adds."""
        mlm = super().own_loss(views, pooled, rng)
        if not self.weight:
            return mlm
        packed = self._pack([tokens for rows in views.values() for tokens in rows])
        vectors = torch.cat([pooled[role] for role in views])[to_device(packed.order, self.device)]
        found = self.weight * self.detection(packed, self.filled_in(packed, rng), vectors)
        return found if mlm is None else found + mlm

    @torch.no_grad()
    def filled_in(self, packed: Packed, rng: np.random.Generator) -> Tensor:
        """(T,) token ids of which the generator predicted a random share; special tokens stay."""
        body = special_free(packed, len(self.prefix), len(self.suffix))
        chosen = to_device(body[rng.random(len(body)) < self.share], self.device)
        assert self.mask_token is not None
        masked = replace(packed, ids=packed.ids.index_fill(0, chosen, self.mask_token))
        last = self._last(self.generator, masked, 0.0).index_select(0, chosen)
        words = self.generator.get_input_embeddings().weight  # type: ignore[operator]
        return packed.ids.index_copy(0, chosen, self.generator_head(last, words).argmax(1))

    def detection(self, packed: Packed, ids: Tensor, vectors: Tensor) -> Tensor:
        """Mean cross-entropy over all tokens of "replaced or not" (Eq. 3).

        Args: packed: the sentences; ids: (T,) as `filled_in`; vectors: (N, H) in the packed order.
        """

        def change(x: Tensor) -> Tensor:
            return x.index_copy(0, packed.first, vectors.to(x.dtype))

        last = self._last(self.discriminator, replace(packed, ids=ids), self.dropout if self.training else 0.0, change)
        return F.cross_entropy(self.detector(last).float(), (ids != packed.ids).long())

    def _last(self, model: nn.Module, packed: Packed, dropout: float, change: ChangeEmbeddings | None = None) -> Tensor:
        wanted = (self.encoder.config.num_hidden_layers,)
        trunk = None if self.packing_note else trunk_of(model)
        if trunk is not None:
            return trunk.states(packed, wanted, dropout, change=change)[wanted[0]]
        return padded_states(model, packed, wanted, change)[wanted[0]]


def loss(z: Encoded, config: DiffcseConfig) -> Tensor:
    """InfoNCE; replaced-token detection is the network's own loss (Eq. 4)."""
    return info_nce(z["anchor"], z["positive"], config.temperature)


METHOD = Method(declaration=DIFFCSE, views=sentence_twice, loss=loss, network=DiffcseNetwork)
