"""Plans: pure, from a config alone, with a reason for every layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, GptOssConfig, Qwen3Config, ViTConfig

from tests.support.models import TINY, Pair, attention
from tpu_kernels import KernelSpec, ModelStructureError, plan_tpu_kernels
from tpu_kernels.harness.coverage.architectures import load_architectures
from tpu_kernels.plan.implementation_name import depends_on_name
from tpu_kernels.plan.table import fold_rows, render_rows
from tpu_kernels.specs import BundledSource, Dimension, Match, Requires


def narrow(name: str, **requires: object) -> KernelSpec:
    return KernelSpec(
        name=name,
        op="attention",
        description="for tests",
        source=BundledSource(name="static-attention"),
        function="static_attention",
        requires=Requires(
            **{"dtypes": ("float32",), "features": ("causal", "left_padding", "grouped_heads"), **requires}
        ),
    )


def test_every_layer_of_a_config_gets_the_bundled_kernel(tmp_path: Path) -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=12)
    plan = plan_tpu_kernels(config)
    assert [entry.path for entry in attention(plan.swapped)] == [f"model.layers.{i}.self_attn" for i in range(12)]
    assert not attention(plan.kept) and {entry.kernel.name for entry in attention(plan.swapped)} == {
        "attention/static-attention"
    }
    assert "model.layers.{0-11}.self_att" in str(plan) and "85 of 85 layers get a kernel" in str(plan)
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen3"
    for model in (tmp_path, str(tmp_path / "config.json")):
        assert [e.path for e in attention(plan_tpu_kernels(model).swapped)] == [e.path for e in attention(plan.swapped)]


def test_a_plan_changes_nothing(qwen3_cpu: Pair) -> None:
    model = qwen3_cpu.reference
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    plan_tpu_kernels(model)
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == before


def test_facts_and_features_are_read_from_the_structure() -> None:
    gemma = attention(plan_tpu_kernels(Gemma2Config(**TINY, num_hidden_layers=2, sliding_window=16)).entries)
    assert gemma[0].facts.features >= {"causal", "left_padding", "softcap", "grouped_heads"}
    gpt = attention(
        plan_tpu_kernels(
            GptOssConfig(
                **TINY, num_hidden_layers=2, num_local_experts=2, layer_types=["sliding_attention", "full_attention"]
            )
        ).entries
    )
    assert gpt[0].facts.features == {"causal", "left_padding", "sinks", "grouped_heads", "sliding_window"}
    assert gpt[1].facts.features == {"causal", "left_padding", "sinks", "grouped_heads"}
    assert dict(gpt[0].facts.sizes) == {"head_dim": 32, "value_head_dim": 32}


def test_each_reason_against_a_kernel_is_named_with_its_line(tmp_path: Path) -> None:
    spec = tmp_path / "narrow.yaml"
    spec.write_text(
        "schema_version: 1\n"
        "name: attention/narrow\n"
        "op: attention\n"
        "description: for tests\n"
        "source: {kind: bundled, name: static-attention}\n"
        "function: static_attention\n"
        "match:\n"
        "  classes: [LlamaAttention]\n"
        "requires:\n"
        "  dtypes: [bfloat16]\n"
        "  features: [causal, left_padding]\n"
        "  generations: [v5p]\n"
        "  head_dim:\n"
        "    multiple_of: 128\n"
    )
    config = Qwen3Config(**{**TINY, "head_dim": 8}, num_hidden_layers=1)
    (entry,) = attention(plan_tpu_kernels(config, specs=[spec], generation="v6e").entries)
    ours = {r.key: (r.needs, r.got, r.where.rsplit(":", 1)[1]) for r in entry.rejected if r.spec == "attention/narrow"}
    assert ours == {
        "match.classes": ("a class of LlamaAttention", "Qwen3Attention", "8"),
        "requires.dtypes": ("dtype in bfloat16", "dtype = float32", "10"),
        "requires.features": ("a layer without grouped_heads", "a layer with grouped_heads", "11"),
        "requires.generations": ("a TPU of v5p", "v6e", "12"),
        "requires.head_dim.multiple_of": ("head_dim % 128 == 0", "head_dim = 8", "14"),
    }
    assert entry.kernel is None and "head_dim >= 16" in entry.reason


def test_a_given_spec_is_preferred_and_the_bundled_one_is_next() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=1)
    good = narrow("attention/good", head_dim=Dimension(max=64))
    bad = narrow("attention/bad", head_dim=Dimension(min=64))
    assert attention(plan_tpu_kernels(config, specs=[good]).entries)[0].kernel is good
    assert attention(plan_tpu_kernels(config, specs=[bad]).entries)[0].kernel.name == "attention/static-attention"
    assert attention(plan_tpu_kernels(config, specs=[bad, good]).entries)[0].kernel is good
    other = good.model_copy(update={"match": Match(classes=("LlamaAttention",))})
    assert attention(plan_tpu_kernels(config, specs=[other]).entries)[0].kernel.name == "attention/static-attention"


def test_a_kernel_that_cannot_pad_is_not_chosen() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=1)
    spec = narrow("attention/no-padding", features=("causal", "grouped_heads"))
    (entry,) = attention(plan_tpu_kernels(config, specs=[spec]).entries)
    assert entry.kernel is not None and entry.kernel.name == "attention/static-attention"


def test_one_key_value_head_is_multi_query() -> None:
    config = Qwen3Config(**{**TINY, "num_key_value_heads": 1}, num_hidden_layers=1)
    assert attention(plan_tpu_kernels(config).entries)[0].facts.features == {"causal", "left_padding", "multi_query"}


def test_include_and_exclude() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=4)
    plan = plan_tpu_kernels(config, include=["model.layers.[0-2].*"], exclude=["*.1.self_attn"])
    assert [entry.path for entry in attention(plan.swapped)] == ["model.layers.0.self_attn", "model.layers.2.self_attn"]
    assert [entry.reason for entry in attention(plan.kept)] == [
        "excluded by '*.1.self_attn'",
        "not in include=['model.layers.[0-2].*']",
    ]


def test_policy() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=1)
    assert attention(plan_tpu_kernels(config, policy="always").swapped)
    with pytest.raises(ValueError, match="policy must be one of auto, always, got 'never'"):
        plan_tpu_kernels(config, policy="never")


def test_rows_are_folded_by_layer_number() -> None:
    rows = [(f"m.layers.{i}.attn", "a" if i != 2 else "b") for i in range(5)] + [("lm_head", "c")]
    assert "[/x] m.layers.[ab]" in render_rows("[bold]", ("layer", "why"), [("[/x] m.layers.[ab]", "[red]")])
    assert fold_rows(rows) == [["m.layers.{0-1,3-4}.attn", "a"], ["m.layers.2.attn", "b"], ["lm_head", "c"]]


def test_no_config_and_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(ModelStructureError, match=r"no model config was found for[\s\S]*config.json"):
        plan_tpu_kernels(tmp_path / "missing")
    with pytest.raises(ModelStructureError, match="ViTConfig is not the config of a causal language model"):
        plan_tpu_kernels(ViTConfig())


def test_a_layer_that_goes_by_the_name_of_the_implementation_is_kept() -> None:
    """Under another name than it knows, its forward would leave out a part of the mask."""
    architecture = load_architectures()["minimax_m3_vl_text"]
    plan = plan_tpu_kernels(architecture.build())
    assert not attention(plan.swapped) and len(attention(plan.kept)) == 3
    assert all(
        "does otherwise by the name of the attention implementation" in entry.reason for entry in attention(plan.kept)
    )
    # A comparison with another name than the model's own changes nothing.
    assert len(attention(plan_tpu_kernels(load_architectures()["gpt2"].build()).swapped)) == 2
    assert not attention(plan_tpu_kernels(load_architectures()["gpt2"].build("eager")).swapped)


def test_sizes_that_differ_between_layers() -> None:
    entries = attention(plan_tpu_kernels(load_architectures()["gemma4_text"].build()).entries)
    assert entries and all("head_dim" in entry.facts.sizes for entry in entries)


def test_attention_outside_the_interface_is_kept_and_said() -> None:
    plan = plan_tpu_kernels(load_architectures()["bloom"].build())
    assert [entry.reason for entry in attention(plan.kept)] == ["it does not use transformers' attention interface"] * 2


class _Config:
    _attn_implementation = "sdpa"


class _Attention(torch.nn.Module):
    config = _Config()


class _InAHelper(_Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helped(x)

    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.config._attn_implementation == "sdpa" else -x


class _Kept(_Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = self.config._attn_implementation
        return x if name == "sdpa" else -x


class _FromADictionary(_Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return {"sdpa": x}.get(self.config._attn_implementation, -x)


class _Inherited(_InAHelper):
    pass


class _WithTextAtTheMargin(_Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One
        line at the margin."""
        # and a comment
        return get_interface(self.config._attn_implementation)(x) if x is not None else x


class _OtherName(_Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if self.config._attn_implementation in ("eager", "paged") else x


def get_interface(name: str) -> Any:
    return None


@pytest.mark.parametrize(
    ("kind", "depends"),
    [
        (_InAHelper, True),
        (_Kept, True),
        (_FromADictionary, True),
        (_Inherited, True),
        (_WithTextAtTheMargin, False),
        (_OtherName, False),
    ],
)
def test_classes_that_use_the_name_of_the_implementation(kind: type[_Attention], depends: bool) -> None:
    assert depends_on_name(kind()) is depends
