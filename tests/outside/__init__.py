"""Exceptions from outside: time limits that raise in a thread at any instruction of it."""
