"""Benchmarks. Each prints a table of ratios measured in one run, or JSON with --json.

Timings on a shared machine are noise. A ratio of two things measured in turn within a minute is
not.
"""
