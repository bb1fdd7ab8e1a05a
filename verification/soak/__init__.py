"""Hours of real processes on one machine, killed, stopped, recorded and judged: ``python -m verification.soak``."""
