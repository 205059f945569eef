"""The chaos run: a real fleet, random load, random faults, and a checker of the history that the clients
wrote.
"""
