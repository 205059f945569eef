"""``sandlot doctor``."""
