"""The command line `tpu-kernels`: one file per command, which does nothing but call the package and print."""
