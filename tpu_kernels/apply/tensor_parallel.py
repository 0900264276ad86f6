"""The `DistributedConfig` that a model is loaded with."""

from __future__ import annotations

from typing import Any

from transformers import DistributedConfig

from tpu_kernels._logging import logger
from tpu_kernels.plan.tensor_parallel import plan_tensor_parallel
from tpu_kernels.runtime.parallel_styles import register_styles


def tp_config(config_or_model_id: Any, tp_size: int) -> DistributedConfig:
    """The config with which transformers divides a model over `tp_size` chips rightly.

    >>> model = AutoModelForCausalLM.from_pretrained(name, distributed_config=tp_config(name, 4))  # doctest: +SKIP

    config_or_model_id  a config, a Hub id, a folder, or a config.json; no weight is read
    tp_size             number of chips, one process each; every process calls this before it loads the model

    The model's own rules are kept but for those that `plan_tensor_parallel` changes. Styles of ours that a rule names
    are made known to transformers in this process. Raises what `plan_tensor_parallel` raises.
    """
    plan = plan_tensor_parallel(config_or_model_id, tp_size)
    register_styles(plan.overrides.values())
    for note in plan.notes:
        logger.info("%s on %d chips: %s", plan.model_class, tp_size, note)
    return DistributedConfig(tp_size=tp_size, tp_plan=plan.overrides or None)
