"""The stores on servers as subjects of the conformance suite: each in a place of its own on a running server."""
