"""Reference cases of GCLSR: outputs of the public code for its loss, network, schedule, augmentation and attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from trainables.methods.gclsr.config import GclsrConfig
from trainables.methods.gclsr.method import optimiser
from trainables.methods.gclsr.network import (
    OPERATIONS,
    Layout,
    TextCNN,
    choose_operations,
    gaussian_white_noise,
    padding_importance,
    predictor,
    projector,
    random_background_noise,
    random_zero_spans,
    remove_mean,
    word_importance,
)
from trainables.methods.losses import grouped_cosine

EXACT = {"atol": 1e-8, "rtol": 0.0}
PROBABILITIES = {"gwn": 0.5, "ifft": 0.1, "rbn": 0.2, "rzs": 0.2}


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def check_gclsr_grouped_loss(data: dict[str, Any]) -> None:
    for case in data["cases"]:
        q1, z1, q2, z2 = (double(data[name]).requires_grad_() for name in ("p1", "z1", "p2", "z2"))
        loss = grouped_cosine(q1, z1, q2, z2, case["group_size"])
        loss.backward()
        assert_close(loss.detach(), double(case["loss"]), **EXACT)
        assert_close(q1.grad, double(case["grad_p1"]), **EXACT)
        assert_close(q2.grad, double(case["grad_p2"]), **EXACT)
        assert (z1.grad is None) == case["grad_z1_is_none"]
        assert (z2.grad is None) == case["grad_z2_is_none"]
    whole = grouped_cosine(*(double(data[name]) for name in ("p1", "z1", "p1", "z2")), q1.shape[1])
    one_way = grouped_cosine(*(double(data[name]) for name in ("p1", "z1", "p1", "z1")), q1.shape[1])
    for original in data["cos_similarity_original"]:  # one direction, p1 against z2
        assert_close(2 * whole - one_way, double(original), **EXACT)


def check_gclsr_heads(data: dict[str, Any]) -> None:
    for case in data["cases"]:
        state = {name: double(values) for name, values in case["state_dict"].items()}
        hidden, width = state["layer1.0.weight"].shape
        network: nn.Module
        if case["name"] == "projector":
            network = projector(width, hidden, len(state["layer3.0.weight"]))
        else:
            network = predictor(width, hidden)
        network.double()
        missing = network.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys
        assert all(key.endswith("num_batches_tracked") for key in missing.missing_keys)
        assert_close(network(double(case["x"])).detach(), double(case["output_train"]), **EXACT)
        after = network.state_dict()
        for name, values in case["running_stats_after"].items():
            assert_close(after[name], double(values), **EXACT)
        assert_close(network.eval()(double(case["x"])).detach(), double(case["output_eval_after"]), **EXACT)


def check_gclsr_lr_schedule(data: dict[str, Any]) -> None:
    for case in data["cases"]:
        names = ("base_lr", "batch_size", "warmup_epochs", "epochs")
        config = GclsrConfig(**{name: case[name] for name in names})
        per_epoch = case["iterations_per_epoch"]
        network = nn.ModuleDict({"backbone": nn.Linear(1, 1), "predictor": nn.Linear(1, 1)})
        sgd, schedule = optimiser(network, config, config.epochs * per_epoch, per_epoch)
        for group, expected in zip(sgd.param_groups, case["initial_groups"], strict=True):
            assert {key: group[key] for key in expected} == expected
        for number, lr, momentum, predictor_lr, predictor_momentum in case["rows"]:
            sgd.step()
            schedule.step()
            got = [(group["lr"], group["momentum"]) for group in sgd.param_groups]
            assert_close(double(got), double([(lr, momentum), (predictor_lr, predictor_momentum)]), **EXACT)
            assert schedule.last_epoch == number + 1


def check_gclsr_pwva_operations(data: dict[str, Any]) -> None:
    draws, names = zip(*data["operation_choice"], strict=True)
    chosen = choose_operations(double(draws), PROBABILITIES)
    assert [OPERATIONS[i] for i in chosen] == [name.lower() for name in names]
    for case in data["cases"]:
        w = double([case["w"]])
        if case["operation"] == "GWN":
            got = gaussian_white_noise(w, double([case["standard_normal"]]), double([[case["snr_db"]]]))
        elif case["operation"] == "IFFT":
            got = remove_mean(w)
        elif case["operation"] == "RBN":
            amplitude = double([[case["unit_uniform_amplitude"]]])
            got = random_background_noise(w, double([case["unit_uniform_per_component"]]), amplitude)
        else:
            spans = torch.tensor(case["zeroed_spans_start_end"])
            got = random_zero_spans(w, spans[None, :, 0], spans[None, :, 1] - spans[None, :, 0])
        assert_close(got, double([case["output"]]), **EXACT)


def check_gclsr_self_attention(data: dict[str, Any]) -> None:
    for case in data["cases"]:
        x, output = double(case["x"]), double(case["output"])
        lengths = np.array(case["lengths"])
        layout = Layout.of(lengths, x.shape[1])
        assert_close((torch.arange(x.shape[1]) < layout.lengths[:, None]).double(), double(case["mask"]), **EXACT)
        words = x[layout.sentence, layout.position]
        importance = word_importance(words, layout.sentence, layout.lengths, layout.max_words)
        assert_close(importance * words, output[layout.sentence, layout.position], **EXACT)
        padded = double(case["mask"]) == 0
        assert_close(padding_importance(x.shape[1]) * x[padded], output[padded], atol=1e-12, rtol=0.0)


def check_gclsr_textcnn(data: dict[str, Any]) -> None:
    for case in data["cases"]:
        x = double(case["x"])
        network = TextCNN(x.shape[2], case["region_sizes"], case["n_filters"]).double()
        network.load_state_dict({name: double(values) for name, values in case["state_dict"].items()})
        layout = Layout.of(np.full(len(x), x.shape[1]), x.shape[1])
        words = x[layout.sentence, layout.position]
        got = network(words, torch.zeros(x.shape[2], dtype=torch.float64), layout)
        assert_close(got.detach(), double(case["output"]), **EXACT)
