"""The chaos run: a real fleet under random load and random faults, and a checker.

The checker reads the history that the clients wrote.
"""
