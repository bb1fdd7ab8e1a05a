"""Tickets: Flask and Flask-SQLAlchemy."""
