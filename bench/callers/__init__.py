"""What keys, tenants and limits cost, and what they protect."""
