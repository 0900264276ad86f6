"""Models divided by `tp_config` over four processes on the CPU say what the whole ones say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import DistributedConfig
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

from tests.support.tensor_parallel import tiny_configs, write_checkpoint
from tpu_kernels import tp_config

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "divided_on_cpu.py"
# Shared key-value heads; fused projections; no plan of its own, sinks, biases of experts; heads, groups, a shared
# vocabulary and an intermediate size that do not divide.
MODELS = ("glm-4-9b", "phi-4", "gpt-oss-20b", "odd-heads", "odd-groups", "odd-sizes")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("checkpoints")
    configs = tiny_configs(layers=1)
    folders = [str(write_checkpoint(folder / name, configs[name])) for name in MODELS]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "TORCH_TPU"))}
    environment |= {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    result = folder / "result.json"
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(result), *folders],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    answer: dict[str, Any] = json.loads(result.read_text())
    return answer


@pytest.mark.parametrize("name", MODELS)
def test_four_processes_say_what_one_says(found: dict[str, Any], name: str) -> None:
    difference, tokens_equal = found[name]
    assert difference < 1e-4
    assert tokens_equal


def test_shared_key_value_heads_trace_as_one_graph(found: dict[str, Any]) -> None:
    assert found["compiled"] < 1e-4


def test_the_config_names_what_differs_and_transformers_knows_every_style() -> None:
    config = tp_config(tiny_configs()["glm-4-9b"], 4)
    assert isinstance(config, DistributedConfig) and config.tp_size == 4
    assert isinstance(config.tp_plan, dict)
    assert config.tp_plan["model.layers.*.self_attn.k_proj.weight"] == "tpu_kernels_kv_heads_2"
    assert "model.layers.*.self_attn.q_proj" not in config.tp_plan
    assert set(config.tp_plan.values()) <= set(ALL_PARALLEL_STYLES.keys())


def test_a_plan_that_is_right_stays_as_it_is() -> None:
    assert tp_config(tiny_configs()["llama-3.1-8b"], 4).tp_plan is None
