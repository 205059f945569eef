"""A worker's membership in its fleet: its identity, its lease, and the record of its sessions."""
