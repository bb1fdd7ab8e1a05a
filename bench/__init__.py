"""What Semel costs: measured against a bare application in the same run (``python -m bench --help``)."""
