"""HTTP bodies of code contexts and cells."""
