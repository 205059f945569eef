"""What every request passes before it reaches a route: limits, admission, and error responses."""
