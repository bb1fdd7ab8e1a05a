"""``python -m bench.growth``: measure stores that have grown, and print what can be pasted into a document."""

import sys

from bench.growth.main import main

if __name__ == "__main__":
    sys.exit(main())
