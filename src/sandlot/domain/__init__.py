"""Values, rules and contracts of Sandlot. Imports only the standard library and its own modules."""
