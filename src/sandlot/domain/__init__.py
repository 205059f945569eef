"""Values, rules and contracts of Sandlot. Standard library only; imports nothing above itself."""
