"""Code contexts in the SDK: run code whose variables stay, and get its values, pictures and errors."""
