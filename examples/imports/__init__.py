"""A small service that takes its suppliers' files."""
