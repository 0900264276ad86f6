"""What a kernel costs on a TPU, from the schedule that libtpu's compiler gives it. No TPU is needed."""
