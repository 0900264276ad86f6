"""The planner's answers: for real models as a table, and for everything that does not divide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    Olmo2Config,
    Phi3Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from typer.testing import CliRunner

from tests.support.models import TINY
from tests.support.tensor_parallel import CONFIGS, REAL, real_config, tiny_configs
from tpu_kernels import TensorParallelError, plan_tensor_parallel
from tpu_kernels.cli.main import app
from tpu_kernels.plan import TensorParallelPlan

ROOT = Path(__file__).parents[2]
SIZES = (2, 4, 8)
LAYER = "model.layers.*"

FUSED = {f"{LAYER}.mlp.gate_up_proj": "packed_colwise", f"{LAYER}.mlp.down_proj": "rowwise"}
SHARED = {
    f"{LAYER}.self_attn.{name}_proj.{parameter}": "tpu_kernels_kv_heads_2"
    for name in "kv"
    for parameter in ("weight", "bias")
} | {f"{LAYER}.self_attn": "tpu_kernels_heads_32"}
NO_PLAN = {
    "model.embed_tokens": "embedding_rowwise",
    f"{LAYER}.self_attn": "tpu_kernels_heads_64",
    f"{LAYER}.self_attn.q_proj": "colwise",
    f"{LAYER}.self_attn.k_proj": "colwise",
    f"{LAYER}.self_attn.v_proj": "colwise",
    f"{LAYER}.self_attn.o_proj": "rowwise",
    f"{LAYER}.mlp.experts": "tpu_kernels_experts_shared_bias",
    f"{LAYER}.mlp.experts.gate_up_proj": "rowwise",
    f"{LAYER}.mlp.experts.gate_up_proj_bias": "rowwise",
    f"{LAYER}.mlp.experts.down_proj": "colwise",
}

ALL = "v4 v5e v5p v6e tpu7x"
# (model, chips): query and key-value heads of a chip, GiB of weights and of cache (4096 positions), where both fit,
# rules that differ from transformers'.
ANSWERS: dict[tuple[str, int], tuple[int, int, float, float, str, dict[str, str]]] = {
    ("gemma-3-27b", 2): (16, 8, 25.94, 0.97, "v4 v5p v6e tpu7x", {}),
    ("gemma-3-27b", 4): (8, 4, 13.37, 0.48, ALL, {}),
    ("gemma-3-27b", 8): (4, 2, 7.08, 0.24, ALL, {}),
    ("glm-4-9b", 2): (16, 1, 8.76, 0.08, ALL, FUSED),
    ("glm-4-9b", 4): (8, 1, 4.42, 0.08, ALL, FUSED | SHARED),
    ("glm-4-9b", 8): (4, 1, 2.25, 0.08, ALL, FUSED | SHARED),
    ("gpt-oss-20b", 2): (32, 4, 19.48, 0.09, "v4 v5p v6e tpu7x", NO_PLAN),
    ("gpt-oss-20b", 4): (16, 2, 9.75, 0.05, ALL, NO_PLAN),
    ("gpt-oss-20b", 8): (8, 1, 4.88, 0.02, ALL, NO_PLAN),
    ("llama-3.1-8b", 2): (16, 4, 7.48, 0.25, ALL, {}),
    ("llama-3.1-8b", 4): (8, 2, 3.74, 0.12, ALL, {}),
    ("llama-3.1-8b", 8): (4, 1, 1.87, 0.06, ALL, {}),
    ("mixtral-8x7b", 2): (16, 4, 43.50, 0.25, "v5p tpu7x", {}),
    ("mixtral-8x7b", 4): (8, 2, 21.75, 0.12, "v4 v5p v6e tpu7x", {}),
    ("mixtral-8x7b", 8): (4, 1, 10.88, 0.06, ALL, {}),
    ("phi-4", 2): (40, 10, 13.65, 0.78, ALL, FUSED),  # its own plan gathers the fused heads on every chip
    ("phi-4", 4): (40, 10, 6.83, 0.78, ALL, FUSED),
    ("phi-4", 8): (40, 10, 3.41, 0.78, ALL, FUSED),
    ("qwen3-0.6b", 2): (8, 4, 0.56, 0.22, ALL, {}),
    ("qwen3-0.6b", 4): (4, 2, 0.28, 0.11, ALL, {}),
    ("qwen3-0.6b", 8): (2, 1, 0.14, 0.05, ALL, {}),
    ("qwen3-8b", 2): (16, 4, 7.63, 0.28, ALL, {}),
    ("qwen3-8b", 4): (8, 2, 3.81, 0.14, ALL, {}),
    ("qwen3-8b", 8): (4, 1, 1.91, 0.07, ALL, {}),
}


def plain(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**TINY, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4} | changes)


def kept_rules(plan: TensorParallelPlan, key: str) -> set[str]:
    return {path for path in plan.kept if path.startswith(key)}


@pytest.mark.parametrize("name", REAL)
def test_the_answers_for_real_models(name: str) -> None:
    config = real_config(name)
    for size in SIZES:
        plan = plan_tensor_parallel(config, size)
        (heads,) = plan.heads
        fits = " ".join(fit.generation for fit in plan.fits if fit.fits)
        answer = (
            len(heads.chunks[0].query),
            heads.local_kv_heads,
            pytest.approx(plan.weight_bytes / 2**30, abs=0.005),
            pytest.approx(plan.cache_bytes / 2**30, abs=0.006),
            set(fits.split()),
            plan.overrides,
        )
        query, kv, weights, cache, where, overrides = ANSWERS[name, size]
        assert answer == (query, kv, weights, cache, set(where.split()), overrides), (name, size)
        assert len(heads.chunks) == size and heads.layers == config.get_text_config().num_hidden_layers


@pytest.mark.parametrize("name", REAL)
def test_each_chip_has_the_key_value_heads_of_its_query_heads(name: str) -> None:
    for size in SIZES:
        (heads,) = plan_tensor_parallel(real_config(name, layers=1), size).heads
        group = heads.query_heads // heads.kv_heads
        for chunk in heads.chunks:
            assert sorted({query // group for query in chunk.query}) == list(chunk.kv)
        if not heads.whole:
            assert [query for chunk in heads.chunks for query in chunk.query] == list(range(heads.query_heads))
            assert len({(len(chunk.query), len(chunk.kv)) for chunk in heads.chunks}) == 1


@pytest.mark.parametrize("name", REAL)
def test_the_tiny_model_is_divided_as_the_real_one(name: str) -> None:
    """What runs as a tiny model is the plan of the real one."""
    tiny, real = tiny_configs()[name], real_config(name, layers=2)
    for size in SIZES:
        ours, theirs = plan_tensor_parallel(tiny, size), plan_tensor_parallel(real, size)
        text = ("model.language_model.", "model.")
        rules = {path.replace(*text): style for path, style in (theirs.kept | theirs.overrides).items()}
        assert ours.kept | ours.overrides == rules
        assert [split.chunks for split in ours.heads] == [split.chunks for split in theirs.heads]


def test_transformers_makes_the_planned_shapes_on_every_rank() -> None:
    asked = [(name, size, rank) for name in REAL for size, rank in ((2, 1), (4, 2), (8, 0), (8, 7))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "TORCH_TPU"))}
    environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = Path(__file__).parent / "scripts" / "shapes_of_transformers.py"
    run = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(asked),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout)
    assert len(found) == len(asked)
    for name, size, rank in asked:
        planned = plan_tensor_parallel(real_config(name, layers=2), size).local_shapes
        assert found[f"{name} {size} {rank}"] == {path: list(shape) for path, shape in planned.items()}


@pytest.mark.parametrize(
    ("config", "size", "reason"),
    [
        (Qwen3Config(**{**TINY, "num_attention_heads": 6}), 4, "6 query heads do not divide by 4"),
        (Qwen3Config(**{**TINY, "num_attention_heads": 20, "num_key_value_heads": 5}), 4, "nor 4 by them"),
    ],
    ids=["query heads", "groups"],
)
def test_heads_that_cannot_be_divided_stay_whole_on_divided_weights(config: Any, size: int, reason: str) -> None:
    plan = plan_tensor_parallel(config, size)
    attention = {path.rpartition(".")[2]: style for path, style in plan.overrides.items() if ".self_attn." in path}
    assert attention == {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise_gather_output"),
        "o_proj": "rowwise_split_input",
    }
    assert plan.heads[0].whole and plan.heads[0].local_kv_heads == config.num_key_value_heads
    assert kept_rules(plan, f"{LAYER}.mlp")
    assert any(reason in note for note in plan.notes)


def test_a_norm_over_all_heads_keeps_them_together() -> None:
    sizes = {key: value for key, value in TINY.items() if key != "head_dim"}
    config = Olmo2Config(**sizes | {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4})
    assert plan_tensor_parallel(config, 4).overrides == {}  # transformers' own plan gathers
    own = dict(config.base_model_tp_plan)
    for name in "qkv":
        own[f"layers.*.self_attn.{name}_proj"] = "colwise"
    config.base_model_tp_plan = own | {"layers.*.self_attn.o_proj": "rowwise"}
    plan = plan_tensor_parallel(config, 4)
    assert plan.overrides[f"{LAYER}.self_attn.k_proj"] == "colwise_gather_output"
    assert any("`q_norm` works on all heads at once" in note for note in plan.notes)


@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_does_not_divide(tied: bool) -> None:
    plan = plan_tensor_parallel(plain(vocab_size=129, tie_word_embeddings=tied), 4)
    assert plan.overrides == {"model.embed_tokens": "embedding_colwise", "lm_head": "rowwise_split_input"}
    assert plan.local_shapes["lm_head.weight"] == plan.local_shapes["model.embed_tokens.weight"] == (129, 16)
    odd = plan_tensor_parallel(plain(vocab_size=129, hidden_size=66, num_attention_heads=2, num_key_value_heads=2), 4)
    assert odd.overrides["lm_head"] == odd.overrides["model.embed_tokens"] == "replicate"


def test_an_intermediate_size_that_does_not_divide() -> None:
    plan = plan_tensor_parallel(plain(intermediate_size=98), 4)
    assert plan.overrides == {
        f"{LAYER}.mlp.gate_proj": "rowwise_split_input",
        f"{LAYER}.mlp.up_proj": "rowwise_split_input",
        f"{LAYER}.mlp.down_proj": "colwise_gather_output",
    }
    assert any("98 x 64 does not divide by 4" in note for note in plan.notes)
    assert plan_tensor_parallel(plain(intermediate_size=98), 2).overrides == {}


def test_gate_and_up_in_one_projection_are_cut_one_by_one_or_not_at_all() -> None:
    config = Phi3Config(**{**TINY, "num_hidden_layers": 1, "intermediate_size": 98})
    config.base_model_tp_plan = config.base_model_tp_plan | {
        "layers.*.mlp.gate_up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    wrong_cut = plan_tensor_parallel(config, 2).overrides
    assert wrong_cut == {f"{LAYER}.mlp.gate_up_proj": "packed_colwise"}
    uneven = plan_tensor_parallel(config, 4).overrides  # 196 rows are divisible, but 98 of each are not
    assert uneven[f"{LAYER}.mlp.gate_up_proj"] == "rowwise_split_input"
    assert uneven[f"{LAYER}.mlp.down_proj"] == "colwise_gather_output"


def test_one_tensor_for_embedding_and_head_is_cut_in_one_way() -> None:
    config = GemmaConfig(**TINY | {"num_hidden_layers": 1}, tie_word_embeddings=True)
    assert plan_tensor_parallel(config, 2).overrides == {}
    assert plan_tensor_parallel(config, 2).tied == (("lm_head.weight", "model.embed_tokens.weight"),)
    config.base_model_tp_plan = config.base_model_tp_plan | {"embed_tokens": "embedding_colwise"}
    assert plan_tensor_parallel(config, 2).overrides == {"lm_head": "rowwise_split_input"}
    config.base_model_tp_plan = config.base_model_tp_plan | {"embed_tokens": "replicate"}
    assert plan_tensor_parallel(config, 2).overrides == {"model.embed_tokens": "embedding_rowwise"}


def test_experts_that_do_not_divide_are_an_error_with_the_sizes_that_do() -> None:
    config = Qwen3MoeConfig(**TINY | {"num_hidden_layers": 1}, num_experts=4, moe_intermediate_size=36)
    assert plan_tensor_parallel(config, 4).overrides[f"{LAYER}.self_attn"].startswith("tpu_kernels_heads")
    with pytest.raises(TensorParallelError) as caught:
        plan_tensor_parallel(config, 8)
    assert "experts of intermediate size 36 do not divide by 8" in str(caught.value)
    assert "works: 1, 2, 3, 4, 6, 9, 12" in str(caught.value)


def test_a_model_of_which_nothing_is_known_is_an_error() -> None:
    with pytest.raises(TensorParallelError, match="base_model_tp_plan") as caught:
        plan_tensor_parallel(GPT2Config(n_embd=64, n_layer=1, n_head=4), 2)
    assert "GPT2LMHeadModel" in str(caught.value) and "works: 1\n" in str(caught.value)


@pytest.mark.parametrize("arguments", [{"tp_size": 0}, {"tp_size": True}, {"tp_size": 2, "cache_len": 0}])
def test_sizes_below_one_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="whole number from 1 up"):
        plan_tensor_parallel(plain(), **arguments)


def test_bytes_are_those_of_the_shards() -> None:
    config = plain(tie_word_embeddings=True, dtype="bfloat16")
    whole, half = plan_tensor_parallel(config, 1), plan_tensor_parallel(config, 2, cache_len=1024, batch_size=3)
    norms = 5 * 64 * 2
    assert half.weight_bytes == (whole.weight_bytes - norms) // 2 + norms
    assert whole.overrides == {} and not whole.heads[0].whole
    assert half.cache_bytes == 2 * 2 * 3 * 1024 * 2 * 32 * 2  # layers, k and v, rows, positions, heads, size, bytes
    assert all(fit.needed == half.weight_bytes + half.cache_bytes for fit in half.fits)


def test_planning_needs_no_device_and_no_group() -> None:
    plan = plan_tensor_parallel(plain(), 4)
    assert not torch.distributed.is_initialized()
    assert plan.local_shapes["model.layers.1.mlp.up_proj.weight"] == (24, 64)


def test_a_plan_prints_what_it_says() -> None:
    text = str(plan_tensor_parallel(str(_saved("glm-4-9b")), 4))
    for part in ("on 4 chips", "tpu_kernels_kv_heads_2", "instead of", "24-31", "4.42 GiB of weights", "v6e"):
        assert part in text


def test_the_command_prints_the_plan_and_refuses_with_the_sizes_that_work(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["plan", str(_saved("phi-4")), "--tp", "8", "--cache-len", "1024", "--batch", "2"])
    assert shown.exit_code == 0, shown.output
    assert "Phi3ForCausalLM on 8 chips" in shown.output and "batch 2, 1024 positions" in shown.output
    assert "gather, so each chip computes and caches all heads" in shown.output
    GPT2Config(n_embd=64, n_layer=1, n_head=4).save_pretrained(tmp_path)
    refused = CliRunner().invoke(app, ["plan", str(tmp_path), "--tp", "2"])
    assert refused.exit_code != 0 and isinstance(refused.exception, TensorParallelError)


def _saved(name: str) -> Path:
    return CONFIGS / f"{name}.json"


def test_a_quantized_checkpoint_is_mentioned() -> None:
    assert any("mxfp4" in note for note in plan_tensor_parallel(real_config("gpt-oss-20b", layers=1), 2).notes)


def test_configs_of_real_models_are_read_by_transformers() -> None:
    for name in REAL:
        values = json.loads(_saved(name).read_text())
        assert type(AutoConfig.for_model(**values)).model_type == values["model_type"]
