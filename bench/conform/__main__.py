"""``python -m bench.conform``."""

from __future__ import annotations

import sys

from bench.conform.main import main

if __name__ == "__main__":
    sys.exit(main())
