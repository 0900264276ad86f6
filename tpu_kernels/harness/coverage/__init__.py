"""Many architectures on the emulated TPU, enabled, each compared with plain transformers on the CPU."""
