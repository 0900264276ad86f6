"""Attention over a static key/value cache."""
