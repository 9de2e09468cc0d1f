"""GCLSR's augmentation of word vectors (PWVA) and its attention over words (methods 6.2, 6.3; D42, D43).

The operations are deterministic functions of words (T, D) and given draws; `augment` draws for all words at once, from
torch's own generator. Which sentence a row belongs to matters to the attention only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

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
    chosen = torch.zeros(uniform.shape, dtype=torch.long, device=uniform.device)
    for number in range(1, len(OPERATIONS)):
        upper = borders[number] if number + 1 < len(OPERATIONS) else math.inf  # the sum may be 1 - 1e-16
        chosen[(uniform > borders[number - 1]) & (uniform < upper)] = number
    return chosen


def augment(words: Tensor, p: float, probabilities: Mapping[str, float], formulas: str) -> Tensor:
    """Every word vector changed with probability p by one drawn operation (6.2), the others as they are.

    Args:
        words: (T, D) floats, not changed.
        p: 0 <= p <= 1; 1 is the paper's mode "full".
        probabilities: of each of `OPERATIONS`, sum 1.
        formulas: "code" or "paper" (D42).
    Returns: (T, D).
    """

    n, device = len(words), words.device
    touched = (torch.rand(n, device=device) < p).nonzero().squeeze(1)
    chosen = choose_operations(torch.rand(len(touched), device=device), probabilities)
    operate = _by_code if formulas == "code" else _by_paper
    result = words.clone()
    for number, name in enumerate(OPERATIONS):
        rows = touched[chosen == number]
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


def softmax_attention(words: Tensor, sentence: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
    """(T, D) sum over j of softmax_j(x_i . x_j / sqrt(D)) x_j over the words of a sentence, no weights (D53).

    Args:
        words, sentence, lengths: as in `word_importance`; position: (T,) place of a word in its sentence.
    """
    sentences, longest, width = len(lengths), int(lengths.max()), words.shape[1]
    slots = sentence * longest + position
    grid = words.new_zeros(sentences * longest, width).index_copy(0, slots, words).view(sentences, longest, width)
    padded = torch.arange(longest, device=words.device)[None, None] >= lengths[:, None, None]
    scores = (grid @ grid.mT / math.sqrt(width)).masked_fill(padded, -math.inf)
    return (scores.softmax(-1) @ grid).flatten(0, 1).index_select(0, slots)
