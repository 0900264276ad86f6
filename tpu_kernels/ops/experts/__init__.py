"""Experts of a mixture: routed gate/up and down projections, and the weighted sum over each token's experts."""
