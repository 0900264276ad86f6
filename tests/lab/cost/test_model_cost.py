"""The cost of a model's decode step, by what its instructions are for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpu_kernels.chips import chip
from tpu_kernels.lab.cost.hlo import parse_hlo
from tpu_kernels.lab.cost.model_cost import by_group, model_costs
from tpu_kernels.lab.cost.model_groups import GROUPS, StepGroups
from tpu_kernels.lab.cost.xla_time import OpCost, ProgramCost

STEP = """HloModule step
ENTRY %main (w: bf16[128,256], k: bf16[1,2,512,128], n: bf16[128]) -> (bf16[1,2,512,128], bf16[1,256]) {
  %w = bf16[128,256]{1,0} parameter(0)
  %k = bf16[1,2,512,128]{3,2,1,0} parameter(1)
  %n = bf16[128]{0} parameter(2)
  %slice-start.1 = ((bf16[128,256]{1,0:T(8,128)}), bf16[64,256]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%w)
  %slice-done.1 = bf16[64,256]{1,0:S(1)} slice-done(%slice-start.1)
  %joined = bf16[128,256]{1,0:S(1)} custom-call(%slice-done.1), custom_call_target="ConcatBitcast"
  %norm = f32[] fusion(%n), kind=kLoop, metadata={op_name="mean/mean"}
  %dot = bf16[1,256]{1,0:S(1)} fusion(%joined, %norm), kind=kOutput
  %read = bf16[1,2,512,128]{3,2,1,0:S(1)} copy(%k)
  %updated = bf16[1,2,512,128]{3,2,1,0:S(1)} dynamic-update-slice(%read, %dot)
  %kernel = bf16[1,256]{1,0:S(1)} custom-call(%dot, %updated), custom_call_target="tpu_custom_call"
  %written = bf16[1,2,512,128]{3,2,1,0} copy(%updated)
  %last = bf16[1,256]{1,0} fusion(%kernel), kind=kLoop, metadata={op_name="add/add"}
  ROOT %out = (bf16[1,2,512,128]{3,2,1,0}, bf16[1,256]{1,0}) tuple(%written, %last)
}
"""


@dataclass(frozen=True)
class Request:
    targets: tuple[str, ...] = ("v6e:1x1",)
    dtype: str = "bfloat16"
    batch: int | None = None
    max_len: int | None = 2048
    length: int | None = 128
    tp_size: int = 1


def test_each_instruction_has_its_group() -> None:
    groups = StepGroups(parse_hlo(STEP))
    assert groups.cache_bytes == 2 * 512 * 128 * 2
    found = {
        name: groups.group(name)
        for name in ("slice-start.1", "slice-done.1", "dot", "norm", "read", "updated", "kernel", "written", "last")
    }
    assert found == {
        "slice-start.1": "weights",
        "slice-done.1": "weights",
        "dot": "weights",
        "norm": "norm",
        # The kernel reads the cache from where this copy puts it; writing it back is a copy alone.
        "read": "attention",
        "updated": "attention",
        "kernel": "attention",
        "written": "cache copies",
        "last": "rest",
    }


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("static_attention_decode.3", "attention"),
        ("gated_mlp.1", "mlp"),
        ("mlp", "mlp"),
        ("grouped_experts_few.2", "experts"),
        ("rms_norm.7", "norm"),
        ("layer_norm", "norm"),
        ("rotary.1", "rotary"),
    ],
)
def test_a_kernel_says_what_it_is_for(kernel: str, group: str) -> None:
    """Its weights are its own; a fusion of that name is told by its data like any other."""
    text = STEP.replace("%dot = ", f"%{kernel} = ").replace("%dot,", f"%{kernel},").replace("%dot)", f"%{kernel})")
    text = text.replace("fusion(%joined, %norm), kind=kOutput", "custom-call(%joined, %norm), {target}")
    called = text.replace("{target}", 'custom_call_target="tpu_custom_call"')
    assert StepGroups(parse_hlo(called)).group(kernel) == group
    other = text.replace("{target}", 'custom_call_target="other"')
    assert StepGroups(parse_hlo(other)).group(kernel) == "weights"


def test_a_slice_counts_once() -> None:
    module = parse_hlo(STEP)
    (slice_start,) = [one for one in module.entry if one.opcode == "slice-start"]
    assert module.hbm_bytes(slice_start) == 64 * 256 * 2


def test_a_wait_is_shared_by_what_is_queued() -> None:
    def op(name: str, opcode: str, seconds: float, read: int) -> OpCost:
        return OpCost(name, opcode, "", seconds, 0.0, read, 0, None)

    ops = (
        op("slice-start.1", "slice-start", 0.0, 300),
        op("small-start", "copy-start", 0.0, 100),
        op("small-done", "copy-done", 8.0, 0),
        op("kernel", "custom-call", 2.0, 50),
    )
    groups = by_group(ProgramCost(ops, 10.0, chip("v6e")), StepGroups(parse_hlo(STEP)))
    assert {name: group.seconds for name, group in groups.items() if group.seconds} == {
        "weights": 6.0,
        "rest": 2.0,
        "attention": 2.0,
    }
    assert groups["weights"].read_bytes == 300


def test_a_model_with_kernels_and_plain(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 256000,
        "tie_word_embeddings": False,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    ours, plain = model_costs(str(file), Request())
    assert [ours.case.flow, plain.case.flow] == ["tpu-kernels", "plain"]
    attention = 512 * 128 * (4 + 2 + 2 + 4)
    weights = 2 * (2 * (attention + 3 * 512 * 2048) + 256000 * 512)
    cache = 2 * 2 * 2 * 2048 * 128 * 2
    for cost in (ours, plain):
        assert cost.error is None
        assert cost.programs == 1
        assert cost.cache_bytes == cache
        # Every weight is read once; of the embedding one row.
        assert cost.groups["weights"].read_bytes == pytest.approx(weights, rel=0.02)
        # Never less than the bytes take, though some are moved before the program begins.
        assert cost.seconds > cost.hbm_bytes / cost.target.chip.hbm_bandwidth
        assert cost.seconds > 0.99 * sum(group.seconds for group in cost.groups.values()) > 0
        assert list(cost.as_dict()["groups"]) == list(GROUPS)
    assert ours.note.startswith("2 x attention/static-attention")
    # The kernel reads the blocks in use; without it the whole cache is read.
    assert ours.groups["attention"].hbm_bytes < 0.6 * cache < 0.9 * plain.groups["attention"].hbm_bytes


def test_a_length_beyond_the_cache() -> None:
    with pytest.raises(ValueError, match="length must be from 1 to 2048"):
        next(model_costs("unused", Request(length=2049)))
