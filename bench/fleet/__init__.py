"""A fleet beside one server, and the fleet that other benchmarks run on (``rig``)."""
