"""Tools for kernel authors: build a Hub kernel's variant, compile kernels ahead of time.

Nothing here runs while a model generates.
"""
