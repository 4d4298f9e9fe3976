"""One small program per engine, run by the Python of that engine's environment; each uses only its own engine."""
