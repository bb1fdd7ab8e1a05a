"""`python -m semel.cli`: the command line where no script is installed."""

from semel.cli.main import main

raise SystemExit(main())
