"""Print a completion while it grows, and stop it in the middle.

python examples/streaming.py
"""

from contextlib import closing

from headrace import LLM, SamplingParams

llm = LLM("tale")
shown = 0
with closing(
    llm.stream("Once upon a time", SamplingParams(max_tokens=200, temperature=0.7, seed=7))
) as outputs:
    for out in outputs:
        text = out.outputs[0].text
        print(text[shown:], end="", flush=True)
        shown = len(text)
        if len(out.outputs[0].token_ids) >= 80:
            break  # closing the stream aborts the request and frees its KV blocks
print(f"\n{llm.stats().free_blocks} of {llm.stats().total_blocks} KV blocks are free")
