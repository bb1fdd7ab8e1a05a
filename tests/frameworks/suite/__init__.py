"""One suite over HTTP that every framework's adapter runs, at its own server and at its own test client."""
