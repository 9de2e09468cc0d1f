"""Small encoders that know their language a little: random ones lose by contrastive training, pre-trained ones gain."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, BertModel, BertTokenizerFast

from benchmarks.inputs import FAMILIES, data_folder, make_encoder, minilm, wiki_sentences
from trainables.encoders.load import load_encoder
from trainables.encoders.network import SentenceNetwork
from trainables.methods.simcse.config import SimcseConfig

BATCH, RATE = 128, 1e-3
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's; the pre-training here has none
STEPS = {"modernbert": 1200, "qwen3": 350}  # of 64 sentences: some ten minutes of a core each
DONE = "pretrained"
KEPT = Path(__file__).parent / "results" / "encoders"  # made once: minutes


def pretrained(shape: str, language: str = "en") -> Path:
    """The folder of the encoder of this shape and language; pre-trained at the first call."""
    folder = KEPT / f"{shape}-{language}"
    if not (folder / DONE).exists():
        if shape in FAMILIES:
            pretrain_family(folder, shape)
        else:
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


def pretrain_family(folder: Path, family: str, share: float = 0.15) -> Path:
    """A small ModernBERT (masked words) or decoder (next words) that has read Wikipedia for some ten minutes of a core.

    Its words start from the principal directions of MiniLM's. share: of the positions that are predicted.
    """
    make_encoder(folder, family)
    steps = STEPS[family]
    masked = family == "modernbert"
    model = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_pretrained(folder)
    words = model.get_input_embeddings().weight
    known = BertModel.from_pretrained(minilm()).embeddings.word_embeddings.weight.detach()
    known = known - known.mean(0)
    directions = torch.linalg.svd(known, full_matrices=False)[2][: words.shape[1]]
    with torch.no_grad():
        words.copy_((found := known @ directions.T) * (0.02 / found.std()))
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    texts = tokenizer(wiki_sentences(), truncation=True, max_length=32)["input_ids"]
    texts.sort(key=len)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    rng = np.random.default_rng(0)
    for step in range(steps):
        at = int(rng.integers(len(texts) - 64))
        batch = tokenizer.pad({"input_ids": texts[at : at + 64]}, return_tensors="pt")
        ids, goals = batch["input_ids"], batch["input_ids"].clone()
        if not masked:
            goals = torch.cat([goals[:, 1:], torch.zeros_like(goals[:, :1])], dim=1)
        asked = (torch.rand(ids.shape) < share) & (goals != 0) & (ids != 102)
        if masked:
            ids = ids.masked_fill(asked, tokenizer.mask_token_id)
        hidden = model.base_model(ids, attention_mask=batch["attention_mask"]).last_hidden_state[asked]
        logits = model.decoder(model.head(hidden)) if masked else model.lm_head(hidden)
        loss = torch.nn.functional.cross_entropy(logits, goals[asked])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"{family}: step {step} of {steps}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
    model.base_model.save_pretrained(folder)
    return folder
