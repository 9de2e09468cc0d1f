"""Small encoders that know their language a little: random ones lose by contrastive training, pre-trained ones gain."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig

from benchmarks.inputs import data_folder, make_encoder, wiki_sentences
from trainables.encoders.load import load_encoder
from trainables.encoders.sentence_network import SentenceNetwork
from trainables.methods.simcse.config import SimcseConfig

BATCH, RATE = 128, 1e-3
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's; the pre-training here has none
DONE = "pretrained"
KEPT = Path(__file__).parent / "results" / "encoders"  # made once: minutes


def pretrained(shape: str, language: str = "en") -> Path:
    """The folder of the encoder of this shape and language; pre-trained at the first call."""
    folder = KEPT / f"{shape}-{language}"
    if not (folder / DONE).exists():
        pretrain(folder, shape, language)
        (folder / DONE).touch()
    return folder


def pretrain(folder: Path, shape: str, language: str = "en", epochs: int = 3) -> Path:
    """A BERT of a shape after masked-language modelling on the real sentences of the language."""
    data = data_folder()
    texts = wiki_sentences() if language == "en" else (data / "zh_sentences.txt").read_text("utf-8").split("\n")
    make_encoder(folder, shape, language)
    loaded = load_encoder(str(folder))
    network = SentenceNetwork(SimcseConfig(mlm_weight=1.0, dropout=0.0, max_length=64), loaded, seed=0)
    ids = loaded.tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokens = [np.asarray(row, dtype=np.int32) for row in ids if row]
    rng = np.random.default_rng(0)
    steps = epochs * (len(tokens) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    network.train()
    for step in range(steps):
        rows = rng.choice(len(tokens), BATCH, replace=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = network.mlm_loss({"sentence": [tokens[row] for row in rows]}, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        if step % 100 == 0:
            print(f"{language}: step {step} of {steps}, masked-language-model loss {loss.item():.3f}", file=sys.stderr)
    network.encoder.save_pretrained(folder)
    BertConfig.from_pretrained(folder, **DROPOUT).save_pretrained(folder)  # without it who fine-tunes has no noise
    return folder
