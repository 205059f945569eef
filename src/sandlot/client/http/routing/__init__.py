"""Decides which server gets a session's calls: its worker or the coordinator."""
