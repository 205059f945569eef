"""Routes of code contexts and cells."""
