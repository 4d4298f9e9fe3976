"""Files of requests in OpenAI's batch format: `input`, `work`, `output`, and `run`, which puts them together.

Import from the modules; this package imports nothing by itself.
"""
