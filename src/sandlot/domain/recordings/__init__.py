"""Recordings of sessions: what commands wrote, with its timing, as asciicast v2."""
