"""The worker: sessions on the real sandboxes of one container engine."""
