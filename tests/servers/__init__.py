"""Real servers for the tests: found, started once per run on a free loopback port, ended by their own process id."""
