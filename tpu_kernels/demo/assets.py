"""Where the bundled model lies."""

from __future__ import annotations

from pathlib import Path

import tpu_kernels
from tpu_kernels.errors import StackError, explain


def demo_model_path() -> Path:
    """The folder of the bundled model (Qwen3ForCausalLM, 1.25 million weights, with its tokenizer).

    It is the same in a checkout and in an installed wheel, and goes to `from_pretrained` as it is. Raises
    StackError where the installation lost it.
    """
    folder = Path(tpu_kernels.__file__).parent / "assets" / "demo_model"
    if not (folder / "model.safetensors").is_file():
        raise StackError(
            explain(
                "The bundled demo model is missing from this installation.",
                needs=str(folder / "model.safetensors"),
                next_step="reinstall tpu-kernels, or train the model anew in a checkout:\n"
                "python examples/train_demo_model.py",
            )
        )
    return folder
