"""One request, from admission to result.

- `admission`: the bounded queue. `metering`: what a request has used.
- `completion`: one completion as text. `output_processor`: all of a step. `outputs`: the public result types.
- `inputs`: prompts and parameters as users pass them to LLM and AsyncLLM.
- `generation`: one request at a client of an engine.

Import from the modules; this package imports nothing by itself.
"""
