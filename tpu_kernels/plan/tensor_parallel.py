"""How a model would be divided over the chips of a tensor-parallel group, from its config alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from tpu_kernels.errors import TensorParallelError, explain
from tpu_kernels.plan.model_view import resolve_model
from tpu_kernels.plan.tp.attention import adapt_attention, add_attention_rules, can_add_rules
from tpu_kernels.plan.tp.dense import adapt_mlps, adapt_rest, adapt_vocabulary
from tpu_kernels.plan.tp.experts import adapt_experts
from tpu_kernels.plan.tp.memory import cache_bytes, fits, weight_bytes
from tpu_kernels.plan.tp.parts import HeadSplit, TensorParallelPlan
from tpu_kernels.plan.tp.rules import Rules
from tpu_kernels.plan.tp.structure import Structure

_SIZES_TRIED: Final = (*range(1, 17), 32, 64)


def plan_tensor_parallel(
    config_or_model_id: Any, tp_size: int, *, cache_len: int = 4096, batch_size: int = 1
) -> TensorParallelPlan:
    """How transformers divides a model over `tp_size` chips, with the rules that must change for it to be right.

    config_or_model_id  a config, a Hub id, a folder, a config.json, or a transformers model; of a config the model's
                        structure is built without weights, on no device and in no process group
    tp_size             number of chips, one process each
    cache_len, batch_size  of the key-value cache that `cache_bytes` and `fits` count, in positions and rows

    A TPU runs one executable on all chips, so every parameter is divided into equal parts or kept whole. Raises
    TensorParallelError, with the sizes that work, where a model cannot be divided; ValueError for a size below 1;
    ModelStructureError where there is no model.
    """
    for name, value in (("tp_size", tp_size), ("cache_len", cache_len), ("batch_size", batch_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number from 1 up, got {value!r}")
    model = resolve_model(config_or_model_id)
    structure = Structure(model)
    rules, heads = _adapted(structure, tp_size)
    if rules.problems:
        raise TensorParallelError(_message(structure, rules, _sizes_that_work(structure)))
    shapes = {each.path: shape for each in structure.parameters if (shape := rules.local(each)) is not None}
    dtype = _dtype(model)
    weights = weight_bytes(rules, shapes)
    cache = cache_bytes(heads, batch=batch_size, length=cache_len, dtype=dtype)
    return TensorParallelPlan(
        model_class=type(model).__name__,
        tp_size=tp_size,
        rules=rules.described(),
        heads=tuple(heads),
        tied=tuple(structure.tied.items()),
        notes=tuple(dict.fromkeys(rules.notes)),
        local_shapes=shapes,
        weight_bytes=weights,
        cache_bytes=cache,
        cache_len=cache_len,
        batch_size=batch_size,
        dtype=str(dtype).removeprefix("torch."),
        fits=fits(weights + cache),
    )


def _adapted(structure: Structure, chips: int) -> tuple[Rules, list[HeadSplit]]:
    """The model's rules, changed for this number of chips, and where the decoder's heads go."""
    rules = Rules(structure, chips)
    decoder = [group for group in structure.attention if structure.in_decoder(group.key)]
    add = chips > 1 and not any(rules.cuts(group.key) for group in structure.layers())
    add = add and bool(decoder) and all(map(can_add_rules, decoder))
    for group in decoder if add else ():
        add_attention_rules(rules, group)
    splits = {group.key: adapt_attention(rules, group) for group in structure.attention}
    if chips > 1:
        adapt_experts(rules, add=add)
        adapt_mlps(rules, add=add)
        if not any(rules.cuts(group.key) for group in structure.layers()):
            rules.problems.append(
                "neither transformers nor tpu_kernels knows how to divide its layers: its config has no"
                " `base_model_tp_plan`, and its attention, MLPs and experts are of no structure that is known"
            )
        adapt_vocabulary(rules, add=add)
        adapt_rest(rules)
    quantized = getattr(structure.model.config, "quantization_config", None)
    if quantized is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized.quant_method
        rules.notes.append(f"the checkpoint is quantized ({method}): this is about its weights once dequantized")
    return rules, [split for group in decoder for split in splits[group.key]]


def _dtype(model: PreTrainedModel) -> torch.dtype:
    dtype: torch.dtype = model.dtype
    return dtype


def _sizes_that_work(structure: Structure) -> list[int]:
    return [size for size in _SIZES_TRIED if not _adapted(structure, size)[0].problems]


def _message(structure: Structure, rules: Rules, sizes: Iterable[int]) -> str:
    works = ", ".join(map(str, sizes))
    return explain(
        f"{type(structure.model).__name__} cannot be divided over {rules.chips} chips.",
        needs=f"a tp_size that works: {works}",
        got="\n".join(rules.problems),
        next_step="take one of these sizes, or write rules of your own:"
        " DistributedConfig(tp_size=..., tp_plan={...}) of transformers.",
    )
