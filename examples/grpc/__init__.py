"""Payments over gRPC, on SQLite."""
