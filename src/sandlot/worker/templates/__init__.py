"""Templates that clients have built: their files, their builds, and the environments that they become."""
