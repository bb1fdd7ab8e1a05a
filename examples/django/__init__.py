"""Loans: Django REST framework and SQLite."""
