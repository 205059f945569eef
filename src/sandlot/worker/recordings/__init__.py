"""Recordings of sessions: what their commands wrote, with its timing, in files of asciicast v2."""
