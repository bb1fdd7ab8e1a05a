"""``python -m bench``: measure, and print a table that can be pasted into a document."""

import sys

from bench.main import main

if __name__ == "__main__":
    sys.exit(main())
