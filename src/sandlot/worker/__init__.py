"""The worker: sessions on real sandboxes, beside one engine."""
