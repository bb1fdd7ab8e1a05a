"""The packages that Semel is compared with: optional, each in a small adapter, all in their own environment.

``make peers`` installs them. An adapter is imported only by the server process that serves its peer. How to add one:
``docs/comparison.md``.
"""
