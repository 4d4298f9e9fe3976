"""Commands that answer requests: over HTTP, from a file, and the engine process."""
