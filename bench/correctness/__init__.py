"""What happens to a command's effect in hard cases: Semel and its peers, real servers, real kills.

``python -m bench.correctness --help``; what the table says and does not say is in ``docs/comparison.md``.
"""
