"""Command policies: which commands are allowed, need a person's approval, or are denied."""
