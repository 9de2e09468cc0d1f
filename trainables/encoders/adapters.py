"""LoRA (Hu et al. 2021, arXiv:2106.09685) by peft: small trained matrices beside linear layers that stay as they are.

The frozen weights are not copied: all trials of a process share those that were read, once per device and precision.
Checkpoints and saved states hold the adapters only; `merged` adds them to the weights, for an export.
"""

from __future__ import annotations

import copy
import re
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.errors import EncoderError
from trainables.encoders.facts import adapted

NAME = "default"  # peft's for the one adapter of a layer
Base = MutableMapping[tuple[str, torch.device, torch.dtype], Tensor]  # frozen weights that a process keeps


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can have an adapter, by their whole name."""
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

    return {name: part for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D))}


def without_numbers(name: str) -> str:
    """A module's name without the blocks' numbers: "encoder.layer.3.output.dense" is "encoder.layer.output.dense"."""
    return re.sub(r"\.\d+(?=\.|$)", "", name)


def sharing_copy(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are views of the model's: nothing may be written to them."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    memo |= {id(b): b for b in model.buffers()}
    return copy.deepcopy(model, memo)


def add_adapters(model: Any, config: EncoderConfig, linear: Sequence[str], base: Base, seed: int) -> None:
    """Freeze a `sharing_copy` and put adapters beside the layers that `lora.targets` names; they add 0 at first.

    Args:
        linear: names without numbers of the layers that may be adapted.
        base: what is kept of the frozen weights from trial to trial, see `place`.
        seed: the new weights depend on it and on nothing else.
    Raises: EncoderError without peft, or for a layer that cannot be adapted.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise EncoderError('lora.rank: needs peft: pip install "contrastive-search[lora]"') from error
    wanted = {layer for layers in adapted(linear, config.lora_targets).values() for layer in layers}
    layers = {name: part for name, part in linear_layers(model).items() if without_numbers(name) in wanted}
    wide = any(not isinstance(part, nn.Linear) for part in layers.values())
    own = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft divides: a float is as good
        lora_dropout=config.lora_dropout,
        target_modules=list(layers),
        fan_in_fan_out=wide,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(own, model, NAME)
        except ValueError as error:  # layers whose weights the family's fast kernels read past the module (Mamba)
            family, names = model.config.model_type, ", ".join(dict.fromkeys(n.rpartition(".")[2] for n in linear))
            message = (
                f"lora.targets: peft does not adapt all of {config.lora_targets!r} in {family}; name some of {names}"
            )
            raise EncoderError(message) from error
    model.frozen_base = base
    model.register_state_dict_post_hook(_adapters_only)
    model.register_load_state_dict_pre_hook(_remember_prefix)
    model.register_load_state_dict_post_hook(_base_is_there)


def added(layer: nn.Module, x: Tensor) -> Tensor | None:
    """(..., out) what a layer's adapter adds for its input x (..., in), in the type of x; None without an adapter."""
    if not hasattr(layer, "lora_A"):
        return None
    own: Any = layer
    down, up, scaling = own.lora_A[NAME].weight, own.lora_B[NAME].weight, float(own.scaling[NAME])
    inner = F.linear(own.lora_dropout[NAME](x), down.to(x.dtype))
    return F.linear(inner, up.to(x.dtype)) * scaling


def place(network: nn.Module, device: torch.device, bf16: bool) -> None:
    """Move frozen weights to where the trial runs: what the process has there is taken, not copied again.

    Args:
        bf16: whether matrix products run in bf16: adapted layers' weights are then kept in it, which autocast would
            make of them in every step. All else stays float32.
    """
    for model in network.modules():
        base: Base | None = vars(model).get("frozen_base")
        if base is None:
            continue
        for name, part in model.named_modules():
            if ".lora_" in name:
                continue
            dtype = torch.bfloat16 if bf16 and name.endswith(".base_layer") else torch.float32
            for own, p in part.named_parameters(recurse=False):
                key = (f"{name}.{own}".replace(".base_layer", ""), device, dtype)
                if key not in base:
                    base[key] = p.detach().to(device, dtype)
                p.data = base[key]


def merged(model: Any) -> None:
    """Replace adapted layers by plain ones of W + (alpha / rank) B A, in float32; the shared weights stay as they are.

    A model without adapters is left alone.
    """
    if vars(model).get("frozen_base") is None:
        return
    for name, layer in list(model.named_modules()):
        if not hasattr(layer, "lora_A"):
            continue
        plain = copy.deepcopy(layer.get_base_layer())  # the layer itself stays whole: a `Trunk` may hold it
        plain.weight = nn.Parameter(plain.weight.detach().float() + layer.get_delta_weight(NAME).detach())
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, plain)
    del model.frozen_base, model.peft_config  # from here on it is as any other model: its state is whole


def _adapters_only(model: nn.Module, state: Any, prefix: str, _: Any) -> None:
    if vars(model).get("frozen_base") is not None:
        for name in [name for name in state if name.startswith(prefix) and ".lora_" not in name]:
            del state[name]


def _remember_prefix(model: Any, _: Any, prefix: str, *__: Any) -> None:
    model.loaded_as = prefix


def _base_is_there(model: Any, incompatible: Any) -> None:
    missing = incompatible.missing_keys
    missing[:] = [name for name in missing if ".lora_" in name or not name.startswith(model.loaded_as)]
