"""Who makes a call, and what its scopes allow."""
