"""Volumes: named files of a tenant that several sessions share. Values, rules and the contract."""
