"""The blocking SDK: the same names without ``await``, as a thin facade over the async classes."""
