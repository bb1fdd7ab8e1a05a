"""A service in node behind `semel proxy`."""
