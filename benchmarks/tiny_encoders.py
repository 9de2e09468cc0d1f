"""Tiny random encoders of the families that transformers has for sentences: folders with model and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = ("red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "the", "a", "on", "mat", "two", "three", "old")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SENTENCES = (
    "the red cat sleeps on the mat", "two old dog runs", "a bird", "the blue bird runs on a green mat", "three",
    "the cat sleeps", "the old green dog sleeps on two red mat the cat runs", "two blue bird",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How to make one: `model_type` of transformers, what its configuration needs beside SHAPE, its tokenizer's kind.

    decoder: the tokenizer puts only a start token (`starts`) or nothing around a sentence, as Llama's and Qwen's do.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    decoder: bool = False
    starts: bool = False
    shape: bool = True


_ROTARY = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
_WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_POSITIONS = {"max_position_embeddings": 64}
FAMILIES = (
    Family("bert", _POSITIONS),
    Family("roberta", _POSITIONS),
    Family("xlm-roberta", _POSITIONS),
    Family("camembert", _POSITIONS),
    Family("electra", {**_POSITIONS, "embedding_size": 16}),
    Family("mpnet", _POSITIONS),
    Family("distilbert", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, **_POSITIONS}, shape=False),
    Family("albert", {**_POSITIONS, "embedding_size": 16}),
    Family("deberta", {**_POSITIONS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    Family("deberta-v2", {**_POSITIONS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    Family("modernbert", {**_POSITIONS, "local_attention": 8}),
    Family("nomic_bert", {"max_position_embeddings": 64}),
    Family("eurobert", _ROTARY),
    Family("jina_embeddings_v3", _POSITIONS),
    Family("ernie", _POSITIONS),
    Family("rembert", {**_POSITIONS, "input_embedding_size": 16, "output_embedding_size": 24}),
    Family("convbert", {**_POSITIONS, "embedding_size": 16}),
    Family("roformer", {**_POSITIONS, "embedding_size": 32}),
    Family("megatron-bert", _POSITIONS),
    Family("roberta-prelayernorm", _POSITIONS),
    Family("xlm-roberta-xl", _POSITIONS),
    Family("data2vec-text", _POSITIONS),
    Family("mobilebert", {**_POSITIONS, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    Family("squeezebert", {**_POSITIONS, "embedding_size": 32}),
    Family("nystromformer", {**_POSITIONS, "num_landmarks": 8, "segment_means_seq_len": 8}),
    Family("fnet", {**_POSITIONS, "tpu_short_seq_length": 64}),
    Family(
        "funnel",
        {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1], "block_repeats": [1, 1]},
        shape=False,
    ),
    Family("xlnet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, shape=False),
    Family("t5", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}, shape=False),
    Family("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, decoder=True, shape=False),
    Family("opt", {**_POSITIONS, "ffn_dim": 48, "word_embed_proj_dim": 32}, decoder=True, starts=True),
    Family("gpt_neox", _POSITIONS, decoder=True),
    Family("bloom", {}, decoder=True),
    Family("llama", _ROTARY, decoder=True, starts=True),
    Family("mistral", {**_ROTARY, "sliding_window": 4}, decoder=True, starts=True),
    Family("qwen2", {"num_key_value_heads": 2, "max_position_embeddings": 64}, decoder=True),
    Family("qwen3", _ROTARY, decoder=True),
    Family("gemma", _ROTARY, decoder=True, starts=True),
    Family("gemma2", {**_ROTARY, **_WINDOW}, decoder=True, starts=True),
    Family("gemma3_text", {**_ROTARY, **_WINDOW}, decoder=True, starts=True),
    Family("phi3", {"num_key_value_heads": 2, "max_position_embeddings": 64}, decoder=True),
    Family("olmo2", _ROTARY, decoder=True),
    Family("lfm2", {"num_key_value_heads": 2, **_POSITIONS, "layer_types": ["full_attention", "conv"]}, decoder=True),
    Family("mamba", {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 4}, decoder=True, shape=False),
)


def save_tiny(family: Family, folder: Path, seed: int = 0) -> Path:
    """Write a random model of a family and a tokenizer of its kind to a folder.

    Weights are normal with standard deviation 0.2 (norms around 1), large enough for attention to matter.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    tokenizer = tokenizer_of(family)
    ids: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    given = {
        **(SHAPE if family.shape else {}),
        **family.config,
        **ids,
        "vocab_size": len(tokenizer),
        "architectures": [],
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(AutoConfig.for_model(family.model_type, **given))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.2)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    with silent():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_of(family: Family) -> Any:
    """Whole words; a decoder's kind puts a start token before a sentence or nothing, other kinds <s> and </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if not family.decoder:
        around = "<s> $A </s>"
    else:
        around = "<s> $A" if family.starts else "$A"
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<s>", 0), ("</s>", 2)])
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    if not family.decoder:
        special |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **special)


@contextmanager
def silent() -> Iterator[None]:
    """Without the library's progress bars and warnings."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
