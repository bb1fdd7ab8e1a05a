"""Donations: Strawberry, Starlette and SQLite."""
