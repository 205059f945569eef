"""Cases about code contexts. Their code is Python that the fake knows too."""
