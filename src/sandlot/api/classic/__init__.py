"""The classic interface: the flat routes and the /api paths of Sandlot's first specification."""
