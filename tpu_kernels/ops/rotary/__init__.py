"""Rotary position embedding: contract, reference, named cases, suite.

`contract` and `cases` need neither torch nor jax; `reference` and `suite` are plain torch.
"""
