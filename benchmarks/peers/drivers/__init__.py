"""One small program an engine, run by the Python of that engine's environment; each knows its own engine alone."""
