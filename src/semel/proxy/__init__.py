"""Semel as a reverse proxy, for services that are not in Python: ``semel proxy``."""
