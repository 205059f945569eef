"""The options of the package cache. ``config`` has the settings for users, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CacheOptions:
    # Seconds in which a page is not asked for again.
    fresh_s: float = 60.0
    # Of one page, and how many are asked for at once. A page is in memory, up to four times, while its links
    # are rewritten.
    max_page_bytes: int = 32 * MIB
    pages_at_once: int = 8
    max_head_bytes: int = 64 * 1024
    # Seconds in which a registry sends nothing.
    idle_s: float = 30.0
    # Seconds for one page and for one file in all.
    page_s: float = 120.0
    total_s: float = 3600.0
    # How many files the worker asks for at once.
    at_once: int = 32
    # Seconds that a download goes on although nobody reads it any more.
    linger_s: float = 5.0
    # Redirects that are followed for one file.
    max_redirects: int = 3
