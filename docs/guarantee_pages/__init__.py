"""What the generated pages are made of: a module for each table, and one for what they have in common."""
