"""``python -m verification.simulate``: many schedules, or one with its story.

Exit codes: 0 everything held, 1 an invariant was broken, 2 the command cannot be carried out.
"""

from __future__ import annotations

import sys

from verification.simulate.command import main

if __name__ == "__main__":
    sys.exit(main())
