"""A relay's sinks: one module for each broker, with its own client, loaded on use."""
