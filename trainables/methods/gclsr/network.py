"""The network of GCLSR (6.2 to 6.4): augmentation of word vectors (PWVA, D42), attention over words (D43), TextCNN,
projector and predictor.

The operations are deterministic functions of words (T, D) and given draws; `augment` draws for all words at once, from
torch's own generator. Which sentence a row belongs to matters to the attention only.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.data.tokens import Tokens
from trainables.encoders.network import Encoded, Network, Views
from trainables.encoders.packing import to_device
from trainables.encoders.word_vectors import WordVectors, unknown_vectors
from trainables.methods.gclsr.config import TEXTCNN_WIDTH, GclsrConfig

OPERATIONS = ("gwn", "ifft", "rbn", "rzs")  # the order of the public code's intervals
SNR_DB = (6, 11)  # signal-to-noise ratio of GWN: a whole number of decibels in this closed range
SPANS = (15, 19)  # number of spans RZS sets to zero
NOISE, DROPOUT, BACKGROUND = 0.1, 0.1, 0.01  # paper: GWN's lambda and RZS's rate (ours, D42); code: RBN's amplitude
PAPER_BACKGROUND = 0.1  # paper: RBN adds U(0, 0.1)
MASKED_SCORE = 1e-9  # what the public code fills in for pairs with padding, without a softmax after it (D43)


def gaussian_white_noise(w: Tensor, normal: Tensor, snr_db: Tensor) -> Tensor:
    """w + normal * sqrt(mean(w^2) / 10^(snr / 10)).

    Args:
        w, normal: (T, D), the vectors and N(0, 1) draws.
        snr_db: (T, 1) decibels.
    """
    return w + normal * (w.square().mean(-1, keepdim=True) / 10 ** (snr_db / 10)).sqrt()


def random_zero_spans(w: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """w with K spans per row set to zero.

    Args:
        w: (T, D).
        starts, lengths: (T, K) int64; a span of length 1 or 2 covers start .. start + length - 1 < D.
    """
    return w.scatter(1, starts, 0.0).scatter(1, starts + lengths - 1, 0.0)


def remove_mean(w: Tensor) -> Tensor:
    """w - mean(w): what the public code's Fourier operation amounts to."""
    return w - w.mean(-1, keepdim=True)


def random_background_noise(w: Tensor, uniform: Tensor, amplitude: Tensor) -> Tensor:
    """w + 0.01 * amplitude * r with r = min w + (0.8 max w - min w) * uniform.

    Args:
        w, uniform: (T, D), uniform in [0, 1).
        amplitude: (T, 1) in [0, 1).
    """
    low, high = w.amin(-1, keepdim=True), 0.8 * w.amax(-1, keepdim=True)
    return w + BACKGROUND * amplitude * (low + (high - low) * uniform)


def choose_operations(uniform: Tensor, probabilities: Mapping[str, float]) -> Tensor:
    """(T,) number in `OPERATIONS` for each draw of U[0, 1).

    The unit interval is cut in the order of `OPERATIONS`; the public code tests open intervals and takes GWN where none
    holds, so a draw exactly on a border is GWN.
    """
    borders = list(accumulate(probabilities[name] for name in OPERATIONS))
    chosen = torch.zeros_like(uniform, dtype=torch.long)
    for number in range(1, len(OPERATIONS)):
        upper = borders[number] if number + 1 < len(OPERATIONS) else math.inf  # the sum may be 1 - 1e-16
        chosen = torch.where((uniform > borders[number - 1]) & (uniform < upper), number, chosen)
    return chosen


def augment(words: Tensor, p: float, probabilities: Mapping[str, float], formulas: str) -> Tensor:
    """Every word vector changed with probability p by one drawn operation (6.2), the rest unchanged.

    Which words and operations is drawn on the host, where shapes depend on it: a GPU need not be waited for.

    Args:
        words: (T, D) floats, not changed.
        p: 0 <= p <= 1; 1 is the paper's mode "full".
        probabilities: of each of `OPERATIONS`, sum 1.
        formulas: "code" or "paper" (D42).
    Returns: (T, D).
    """
    touched = np.flatnonzero(np.asarray(torch.rand(len(words))) < p)
    chosen = np.asarray(choose_operations(torch.rand(len(touched)), probabilities))
    operate = _by_code if formulas == "code" else _by_paper
    result = words.clone()
    for number, name in enumerate(OPERATIONS):
        rows = to_device(touched[chosen == number], words.device)
        result[rows] = operate(name, words[rows])
    return result


def _by_code(name: str, w: Tensor) -> Tensor:
    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, device=w.device)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, device=w.device)

    n, dim = w.shape
    if name == "gwn":
        return gaussian_white_noise(w, torch.randn(w.shape, device=w.device), whole(*SNR_DB, n, 1))
    if name == "ifft":
        return remove_mean(w)
    if name == "rbn":
        return random_background_noise(w, uniform(n, dim), uniform(n, 1))
    longest = whole(1, 2, n, 1)  # m, one per word; span length int(U(1, m + 0.1))
    lengths = (1 + uniform(n, SPANS[1]) * (longest - 0.9)).long()
    starts = (uniform(n, SPANS[1]) * (dim - lengths)).long()  # so the last component is never zeroed, as in the code
    unused = torch.arange(SPANS[1], device=w.device) >= whole(*SPANS, n, 1)
    starts, lengths = (torch.where(unused, drawn[:, :1], drawn) for drawn in (starts, lengths))  # repeat the first span
    return random_zero_spans(w, starts, lengths)


def _by_paper(name: str, w: Tensor) -> Tensor:
    if name == "gwn":
        return w + NOISE * torch.randn(w.shape, device=w.device)
    if name == "ifft":
        return w  # Re(IFFT(FFT(w))): as printed, the identity
    uniform = torch.rand(w.shape, device=w.device)
    if name == "rbn":
        return w + PAPER_BACKGROUND * uniform
    return w * (uniform >= DROPOUT) / (1 - DROPOUT)


def word_importance(words: Tensor, sentence: Tensor, lengths: Tensor, max_words: int) -> Tensor:
    """(T, 1) importance of each word: the sum of its scores x_i . x_j / sqrt(D) over its sentence (6.3).

    Summing over j first makes the L x L score matrix unnecessary: importance_i = x_i . sum_j x_j / sqrt(D), plus 1e-9
    for each of the L - n padded positions.

    Args:
        words: (T, D) of all sentences, in any order.
        sentence: (T,) number of the sentence a word belongs to, 0..B-1.
        lengths: (B,) words per sentence.
        max_words: L, positions per sentence including padding.
    """
    totals = words.new_zeros(len(lengths), words.shape[1]).index_add_(0, sentence, words)
    scores = (words * totals[sentence]).sum(1) / math.sqrt(words.shape[1])
    return (scores + MASKED_SCORE * (max_words - lengths[sentence])).unsqueeze(1)


def padding_importance(max_words: int) -> float:
    """Importance of a padded position: L masked scores."""
    return MASKED_SCORE * max_words


def softmax_attention(words: Tensor, sentence: Tensor, position: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """(T, D) sum over j of softmax_j(x_i . x_j / sqrt(D)) x_j over the words of a sentence, no weights (D53).

    Args:
        words, sentence, lengths: as in `word_importance`; position: (T,) place of a word in its sentence.
        longest: words of the longest sentence.
    """
    sentences, width = len(lengths), words.shape[1]
    slots = sentence * longest + position
    grid = words.new_zeros(sentences * longest, width).index_copy(0, slots, words).view(sentences, longest, width)
    padded = torch.arange(longest, device=words.device)[None, None] >= lengths[:, None, None]
    scores = (grid @ grid.mT / math.sqrt(width)).masked_fill(padded, -math.inf)
    return (scores.softmax(-1) @ grid).flatten(0, 1).index_select(0, slots)


PREDICTOR_HIDDEN = 1024
EVALUATION_CHUNK = 256  # sentences at once; bounds memory at chunk * max_words * filters floats
VIEWS = ("first", "second")


@dataclass(frozen=True)
class Layout:
    """The words of B sentences as one list, ordered by position, then sentence.

    In this order the words at position k and later are a slice without copying. That is why: a convolution of width r
    is the sum over k < r of "word k places after the start, times the k-th slice of the filters", and nothing has to be
    computed for padding, whose vector is always the same. On Wikipedia sentences this is a quarter of the work.

    sentence, position: (T,) int64.
    lengths: (B,) int64 in 1..max_words.
    first: first[k] is the offset of the first word at position k; one more entry holds T.
    max_words: L, positions per sentence with padding.
    on_host: sentence and position again, where no device has to be waited for.
    """

    sentence: Tensor
    position: Tensor
    lengths: Tensor
    first: tuple[int, ...]
    max_words: int
    on_host: tuple[NDArray[np.int64], NDArray[np.int64]]

    @property
    def longest(self) -> int:
        """Words of the longest sentence."""
        return len(self.first) - 1

    @staticmethod
    def of(lengths: NDArray[np.int64], max_words: int, device: torch.device | None = None) -> Layout:
        """The layout of sentences of these lengths: at least 1 (tokenizers see to it), cut to max_words already."""
        present = np.arange(lengths.max())[:, None] < lengths[None, :]
        position, sentence = np.nonzero(present)
        first = (0, *np.cumsum(present.sum(1)).tolist())
        where = device or torch.device("cpu")
        sentences, positions, counts = (to_device(a, where) for a in (sentence, position, lengths.astype(np.int64)))
        return Layout(sentences, positions, counts, first, max_words, (sentence, position))

    def arrange(self, rows: Sequence[Tokens]) -> Tokens:
        """(T,) the values of one row per sentence in this layout's order."""
        starts = np.cumsum([0, *(len(row) for row in rows)])[:-1]
        sentence, position = self.on_host
        place = starts[sentence] + position
        arranged: Tokens = np.concatenate(rows)[place]
        return arranged


class TextCNN(nn.Module):
    """For each region size r a convolution of F filters over r words, ReLU, maximum over positions, concatenated.

    The maximum runs over padded positions too (6.4). Parameters have the names and shapes of the public code,
    `convs.K.weight` (F, 1, r, D) and `convs.K.bias` (F,).
    """

    def __init__(self, dim: int, region_sizes: Sequence[int], filters: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1, filters, (r, dim)) for r in region_sizes)

    def forward(self, words: Tensor, padding: Tensor, layout: Layout) -> Tensor:
        """(B, F * R) sentence vectors.

        Args:
            words: (T, D) vectors in the order of `layout`.
            padding: (D,) the vector of every padded position.
        """
        return torch.cat([self._maxima(conv, words, padding, layout) for conv in self.convs], dim=1)

    @staticmethod
    def _maxima(conv: nn.Module, words: Tensor, padding: Tensor, layout: Layout) -> Tensor:
        """(B, F) largest response of one convolution, ReLU applied. Windows within padding are alike: one is taken."""
        assert isinstance(conv, nn.Conv2d)
        assert conv.bias is not None
        weight, bias = conv.weight[:, 0], conv.bias  # (F, r, D), (F,)
        width = weight.shape[1]
        last = (layout.lengths.clamp(max=layout.max_words - width)).unsqueeze(1)  # (B, 1) last start worth computing
        starts = torch.arange(min(layout.longest, layout.max_words - width) + 1, device=words.device)
        # What the padding behind a sentence adds to a window with m words: the filters' slices m, m + 1, ..., or, for
        # starts that do not exist, minus infinity.
        slices = (weight @ padding).T  # (r, F)
        tail = F.pad(slices.flip(0).cumsum(0).flip(0), (0, 0, 0, 1)) + bias
        table = F.pad(tail, (0, 0, 0, 1), value=-torch.inf)
        inside = (layout.lengths.unsqueeze(1) - starts).clamp(0, width)
        # (B * S, F). Not a view of anything: autograd would copy it for every sum into a view.
        responses = F.embedding(torch.where(starts <= last, inside, width + 1).flatten(), table)
        for k in range(min(width, len(layout.first) - 1)):
            begin, end = layout.first[k], layout.first[min(k + len(starts), len(layout.first) - 1)]
            target = layout.sentence[begin:end] * len(starts) + layout.position[begin:end] - k
            responses.index_add_(0, target, (words[begin:end] @ weight[:, k].T).to(responses.dtype))
        return responses.view(len(layout.lengths), len(starts), -1).max(1).values.relu()


def _read_seed(network: GclsrNetwork, _: object) -> None:
    network.seed = int(network.vector_seed)


def _hidden(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU(inplace=True))


def projector(width: int, hidden: int = TEXTCNN_WIDTH, out: int = TEXTCNN_WIDTH, last_bn: bool = True) -> nn.Module:
    """(N, width) -> (N, out): three linear layers with batch-norm, that of the last by option (D45); ReLU after two."""
    first, second = _hidden(width, hidden), _hidden(hidden, hidden)
    last = nn.Sequential(nn.Linear(hidden, out), *([nn.BatchNorm1d(out)] if last_bn else []))
    return nn.Sequential(OrderedDict(layer1=first, layer2=second, layer3=last))


def predictor(width: int = TEXTCNN_WIDTH, hidden: int = PREDICTOR_HIDDEN) -> nn.Module:
    """(N, width) -> (N, width): linear, batch-norm, ReLU, linear."""
    return nn.Sequential(OrderedDict(layer1=_hidden(width, hidden), layer2=nn.Linear(hidden, width)))


class GclsrNetwork(Network):
    """Word vectors (fixed), TextCNN, projector, predictor.

    Args:
        vectors: the known words; row i is word id i, ids below 0 are unknown words (`word_vectors.WordTokenizer`).
        seed: draws the weights, the padding vector and the unknown words' vectors. The last two are part of the
            state dict, the known vectors are not: a checkpoint is used with the vector file it was trained on.
    """

    whole_batch = ("projector", "predictor")
    padding: Tensor
    vector_seed: Tensor
    vectors: Tensor

    def __init__(self, config: GclsrConfig, vectors: WordVectors, seed: int) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone = TextCNN(vectors.dim, config.region_sizes, config.filters)
            width = config.filters * len(config.region_sizes)
            self.projector = projector(width, last_bn=config.projector_last_bn)
            self.predictor = predictor()
            bound = (3 / vectors.dim) ** 0.5
            self.register_buffer("padding", torch.empty(vectors.dim).uniform_(-bound, bound))
        self.register_buffer("vector_seed", torch.tensor(seed))
        self.seed = seed  # on the host
        self.register_load_state_dict_post_hook(_read_seed)  # type: ignore[no-untyped-call]  # torch's own
        self.register_buffer("vectors", torch.from_numpy(vectors.matrix), persistent=False)

    def encode(self, views: Views) -> dict[str, Tensor]:
        """(N, F * R) backbone vectors "first" and "second": two draws of augmentation (6.2) of the role "sentence".

        The second is of the role "augmented" where there is one. The draws come from torch's own generator, like
        dropout masks: one state is saved and restored when a trial goes on.
        """
        first = self._laid_out(views["sentence"])
        second = self._laid_out(views["augmented"]) if "augmented" in views else first
        attention = self.config.self_attention
        return {
            view: self._backbone(self._augmented(ids), layout, attention)
            for view, (ids, layout) in zip(VIEWS, (first, second), strict=True)
        }

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """z1, z2 (projector) and q1, q2 (predictor), (N, 4096); batch-norm statistics are those of one view."""
        z1, z2 = (self.projector(pooled[view]) for view in VIEWS)
        return {"z1": z1, "z2": z2, "q1": self.predictor(z1), "q2": self.predictor(z2)}

    @torch.no_grad()
    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """(n, F * R) backbone vectors; no augmentation, padding vectors in, attention only if it is on (D44)."""
        chunks = []
        for start in range(0, len(sequences), EVALUATION_CHUNK):
            ids, layout = self._laid_out(sequences[start : start + EVALUATION_CHUNK])
            words = self._lookup(ids, fixed=True)
            chunks.append(self._backbone(words, layout, self.config.self_attention and self.config.attention_at_eval))
        return torch.cat(chunks)

    def _laid_out(self, sequences: Sequence[Tokens]) -> tuple[Tokens, Layout]:
        rows = [row[: self.config.max_words] for row in sequences]
        layout = Layout.of(np.array([len(row) for row in rows]), self.config.max_words, self.padding.device)
        return layout.arrange(rows), layout

    def _lookup(self, ids: Tokens, *, fixed: bool) -> Tensor:
        """(T, D) vectors; unknown words' are those of this run, or with `oov: resample` and not `fixed` new (D40)."""
        device, dim = self.padding.device, self.padding.shape[0]
        words = self.vectors[to_device(np.maximum(ids, 0).astype(np.int64), device)]
        unknown = np.flatnonzero(ids < 0)
        if self.config.oov == "resample" and not fixed:
            bound = (3 / dim) ** 0.5
            drawn = torch.empty(len(unknown), dim, device=device).uniform_(-bound, bound)
        else:
            distinct, place = np.unique(ids[unknown], return_inverse=True)
            drawn = to_device(unknown_vectors(distinct, self.seed, dim)[place], device)
        words[to_device(unknown, device)] = drawn
        return words

    def _augmented(self, ids: Tokens) -> Tensor:
        config, words = self.config, self._lookup(ids, fixed=False)
        if config.augmentation == "none":
            return words
        p = 1.0 if config.augmentation == "full" else config.pwva_p
        probabilities = {"gwn": config.p_gwn, "ifft": config.p_ifft, "rbn": config.p_rbn, "rzs": config.p_rzs}
        return augment(words, p, probabilities, config.pwva)

    def _backbone(self, words: Tensor, layout: Layout, attention: bool) -> Tensor:
        padding = self.padding
        if attention and self.config.attention_form == "bert":
            words = softmax_attention(words, layout.sentence, layout.position, layout.lengths, layout.longest)
            padding = torch.zeros_like(padding)
        elif attention:
            words = words * word_importance(words, layout.sentence, layout.lengths, layout.max_words)
            padding = padding * padding_importance(layout.max_words)
        out: Tensor = self.backbone(words, padding, layout)
        return out
