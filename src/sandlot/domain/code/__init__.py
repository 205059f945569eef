"""Code contexts: stateful kernels inside a sandbox, and the cells that they run."""
