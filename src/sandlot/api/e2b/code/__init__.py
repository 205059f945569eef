"""The code interpreter of E2B's SDK: contexts and cells, on a port of its own."""
