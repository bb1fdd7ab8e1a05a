"""`semel conform` on Semel's service on every store, and on public packages for Python and Node: `make conform`."""
