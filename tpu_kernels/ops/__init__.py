"""What kernels compute: for each kind of layer its contract, its one reference and its named cases."""
