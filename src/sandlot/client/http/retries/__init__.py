"""Which requests are sent again after a failure, and when."""
