"""How a model is divided over the chips of a tensor-parallel group: rules, heads, shapes and bytes."""

from tpu_kernels.plan.tp.parts import ChipFit, Chunk, HeadSplit, Rule, TensorParallelPlan

__all__ = ["ChipFit", "Chunk", "HeadSplit", "Rule", "TensorParallelPlan"]
