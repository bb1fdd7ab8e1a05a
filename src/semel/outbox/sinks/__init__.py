"""Where a relay delivers events: one module a broker, each of them with its own client, loaded when it is used."""
