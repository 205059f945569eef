"""``sandlot top``: what a server or a fleet does now, in the terminal."""
