"""The routes of the current API, under /v1, and the routes for operators."""
