"""Files of requests in OpenAI's batch format: `files`, `work`, and `run`, which puts them together.

Import from the modules; this package imports nothing by itself.
"""
