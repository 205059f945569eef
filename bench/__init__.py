"""Benchmarks: each prints a table of ratios taken in one run, and the same as JSON with --json.

Timings on a shared machine are noise; a ratio of two things done in turn in the same minute is not.
"""
