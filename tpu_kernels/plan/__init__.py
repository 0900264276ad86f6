"""Planning: which kernel fits which layer of a model. Pure: nothing here changes a model."""

from tpu_kernels.plan.layer import Layer
from tpu_kernels.plan.layers import candidate_layers
from tpu_kernels.plan.match import LayerFacts, Rejection, rejection_message, rejections
from tpu_kernels.plan.model_view import attention_layers, resolve_model, unwrap
from tpu_kernels.plan.swap_plan import PlanEntry, SwapPlan, plan_layers, plan_model, plan_tpu_kernels
from tpu_kernels.plan.tensor_parallel import plan_tensor_parallel
from tpu_kernels.plan.tp import TensorParallelPlan

__all__ = [
    "Layer",
    "LayerFacts",
    "PlanEntry",
    "Rejection",
    "SwapPlan",
    "TensorParallelPlan",
    "attention_layers",
    "candidate_layers",
    "plan_layers",
    "plan_model",
    "plan_tensor_parallel",
    "plan_tpu_kernels",
    "rejection_message",
    "rejections",
    "resolve_model",
    "unwrap",
]
