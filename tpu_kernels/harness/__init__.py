"""What kernel authors run: models whose features bite, and the comparison of many architectures with transformers."""
