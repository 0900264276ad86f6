from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_kernels.lab.programs import FunctionCase, Program, capture_functions, reference_cases
from tpu_kernels.ops.attention.cases import case

TINY = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("tiny") / "config.json"
    file.write_text(json.dumps(TINY))
    return file


@pytest.fixture(scope="session")
def captured() -> list[Program]:
    """A product, a sum of two tensors that no chip holds, and the reference of an op."""
    return capture_functions(
        [
            FunctionCase("product", "torch:matmul", (((256, 512), "bfloat16"), ((512, 128), "bfloat16"))),
            FunctionCase("huge sum", "torch:add", (((2**31, 64), "float32"), ((2**31, 64), "float32"))),
            *reference_cases([case("gpt-oss-20b/decode")], ["bfloat16"]),
        ]
    )
