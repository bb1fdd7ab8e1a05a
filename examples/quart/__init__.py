"""Tickets: Quart, SQLAlchemy and SQLite."""
