"""Reference cases of SimCSE, its reproductions and sentence-transformers (methods 1.3-1.6, 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertModel

from trainables.encoders import network as pooling
from trainables.encoders.forward import padded_states
from trainables.encoders.heads import MlmHead, make_head
from trainables.encoders.packing import pack
from trainables.encoders.trunk import trunk_of
from trainables.methods.losses import info_nce, info_nce_both_rows, info_nce_hard, nt_xent

TOLERANCE = 1e-8  # absolute, float64, as the files ask
Golden = Mapping[str, Any]


def check_simcse_unsup_loss(golden: Golden) -> None:
    """InfoNCE between two views, with gradients (1.5)."""
    for case in golden["cases"]:
        z1, z2 = inputs(case, "z1", "z2")
        loss = info_nce(z1, z2, case["temperature"])
        agree(case["name"], loss, case["loss"])
        gradients(case, loss, {"grad_z1": z1, "grad_z2": z2})


def check_simcse_sup_hard_negative_loss(golden: Golden) -> None:
    """InfoNCE with hard negatives and a weight on the own one (1.5).

    The official code keeps the weight in float32, hence the wider tolerance where it is not exact there.
    """
    for case in golden["cases"]:
        z1, z2, z3 = inputs(case, "z1", "z2", "z3")
        weight = case["hard_negative_weight"]
        tolerance = TOLERANCE if float(np.float32(weight)) == weight else 1e-6
        loss = info_nce_hard(z1, z2, z3, case["temperature"], weight)
        agree(case["name"], loss, case["loss"], tolerance)
        gradients(case, loss, {"grad_z1": z1, "grad_z2": z2, "grad_z3": z3}, tolerance)


def check_simcse_repro_losses(golden: Golden) -> None:
    """The reproduction post's losses on interleaved rows, and the variant with positives as rows (1.5, 2.2)."""
    for case in golden["cases"]:
        (y,) = inputs(case, "y_pred")
        tau = case["temperature"]
        if case["name"].startswith("unsup"):
            loss = nt_xent(y[0::2], y[1::2], tau)
        else:
            loss = info_nce_hard(y[0::3], y[1::3], y[2::3], tau)
        agree(case["name"], loss, case["loss"])
        gradients(case, loss, {"grad": y})
        if "loss_second_implementation" in case:
            agree(case["name"], loss, case["loss_second_implementation"])
        if "loss_variant_both_rows" in case:
            agree(case["name"], info_nce_both_rows(y[0::3], y[1::3], y[2::3], tau), case["loss_variant_both_rows"])


def check_mnrl_sentence_transformers(golden: Golden) -> None:
    """MultipleNegativesRankingLoss: `info_nce` on pairs, `info_nce_hard` with weight 0 on triplets (1.5)."""
    for case in golden["cases"]:
        names = [n for n in ("anchors", "positives", "negatives") if n in case]
        vectors = inputs(case, *names)
        assert case["scale"] * case["temperature"] == pytest.approx(1)
        loss = (info_nce if len(vectors) == 2 else info_nce_hard)(*vectors, case["temperature"])
        agree(case["name"], loss, case["loss"])
        gradients(case, loss, {f"grad_{n}": v for n, v in zip(names, vectors, strict=True)})


def check_simcse_pooling_tiny_bert(golden: Golden) -> None:
    """Hidden states, poolings, head, loss and MLM term of a tiny BERT, by the packed and the padded pass (1.3-1.6)."""
    weights = {name: torch.tensor(value, dtype=torch.float64) for name, value in golden["state_dict"].items()}
    model = BertModel(BertConfig(**golden["config"]), add_pooling_layer=False).double().eval()
    model.load_state_dict({k.removeprefix("bert."): v for k, v in weights.items() if k.startswith("bert.")})
    width = model.config.hidden_size
    head = make_head("linear_tanh", width, seed=0)
    assert head is not None
    head.double().load_state_dict({"0.weight": weights["mlp.dense.weight"], "0.bias": weights["mlp.dense.bias"]})
    trunk = trunk_of(model)
    assert trunk is not None
    mask = np.array(golden["attention_mask"]).reshape(8, -1).astype(bool)
    ids = np.array(golden["input_ids"]).reshape(8, -1)
    # The sentences hold all their tokens already, so the template is cut out of them: first and last token.
    packed = pack([row[keep].astype(np.int32) for row, keep in zip(ids, mask, strict=True)], 12, [], [])
    numbers = tuple(range(model.config.num_hidden_layers + 1))
    with torch.no_grad():
        passes = [trunk.states(packed, numbers), padded_states(model, packed, numbers)]
        mlm = mlm_loss(golden, weights, packed, trunk.states)
        for states in passes:
            for number in numbers:
                expected = torch.tensor(golden["hidden_states"][number], dtype=torch.float64)[packed.order]
                agree(
                    f"state {number}",
                    packed.pad(states[number]) * packed.mask[..., None],
                    expected * packed.mask[..., None],
                )
            for case in golden["cases"]:
                kind = case["pooler_type"]
                wanted = pooling.wanted_states(kind, numbers[-1])
                if kind in pooling.FROM_FIRST_TOKEN:
                    raw = states[wanted[0]].index_select(0, packed.first)
                else:
                    raw = pooling.average({n: states[n] for n in wanted}, packed)
                raw = packed.restore(raw)
                trained = head(raw) if kind == "cls" else raw
                agree(case["name"], raw if case["mlp_only_train"] else trained, case["sentence_embeddings"])
                loss = info_nce(trained[0::2], trained[1::2], 0.05)
                logits = F.cosine_similarity(trained[0::2, None], trained[None, 1::2], dim=-1) / 0.05
                agree(case["name"], logits, case["train_logits"])
                agree(case["name"], loss, case["train_loss"])
                agree(case["name"], loss + case["mlm_weight"] * mlm, case["train_loss_with_mlm"])


def mlm_loss(
    golden: Golden, weights: Mapping[str, Tensor], packed: Any, states: Callable[..., dict[int, Tensor]]
) -> Tensor:
    """Mean cross-entropy of the golden's own masked input; its decoder is not tied to the embeddings."""
    decoder = weights["lm_head.decoder.weight"]
    names = {"dense.weight": "transform.dense.weight", "dense.bias": "transform.dense.bias", "bias": "decoder.bias"}
    names |= {"norm.weight": "transform.LayerNorm.weight", "norm.bias": "transform.LayerNorm.bias"}
    head = MlmHead(decoder.shape[1], (len(decoder), decoder.shape[1]), {}, seed=0).double()
    head.load_state_dict({ours: weights[f"lm_head.{theirs}"] for ours, theirs in names.items()})
    masked = torch.tensor(golden["mlm_input_ids"]).view(len(packed), -1)[packed.order]
    labels = torch.tensor(golden["mlm_labels"]).view(len(packed), -1)[packed.order]
    last = len(golden["hidden_states"]) - 1
    hidden = states(type(packed)(masked[packed.mask], packed.lengths, packed.order), (last,))[last]
    return F.cross_entropy(head(hidden, decoder), labels[packed.mask])


def inputs(case: Golden, *names: str) -> list[Tensor]:
    return [torch.tensor(case[n], dtype=torch.float64, requires_grad=True) for n in names]


def agree(what: str, got: Tensor, expected: Any, tolerance: float = TOLERANCE) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.detach(), expected, rtol=0, atol=tolerance, msg=lambda m: f"{what}: {m}")


def gradients(case: Golden, loss: Tensor, of: Mapping[str, Tensor], tolerance: float = TOLERANCE) -> None:
    found = torch.autograd.grad(loss, list(of.values()), retain_graph=True)
    for name, gradient in zip(of, found, strict=True):
        agree(f"{case['name']} {name}", gradient, case[name], tolerance)
