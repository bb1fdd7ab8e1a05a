"""``python -m bench.correctness``: print the table."""

import sys

from bench.correctness.main import main

if __name__ == "__main__":
    sys.exit(main())
