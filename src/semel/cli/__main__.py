"""The `semel` script, and `python -m semel.cli` where no script is installed.

It imports the command line inside ``main``, so that Ctrl-C during that import prints one line and no traceback.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from semel.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("semel: interrupted\n")
        return 130  # Exit.INTERRUPTED, written out: Ctrl-C may have interrupted the import of its module
    return command_line.main()


if __name__ == "__main__":
    raise SystemExit(main())
