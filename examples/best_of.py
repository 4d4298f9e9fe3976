"""Sample several completions of one prompt and keep the one that the model finds most likely.

The completions share the blocks of the prompt; a block is copied when the first of them writes into it.

    python examples/best_of.py
"""

from headrace import LLM, SamplingParams

llm = LLM("tale")
params = SamplingParams(n=4, temperature=0.9, seed=1, max_tokens=60, logprobs=0)
out = llm.chat([{"role": "user", "content": "Tell me a short story about a duck."}], params)[0]
for completion in sorted(out.outputs, key=lambda one: one.cumulative_logprob, reverse=True):
    per_token = completion.cumulative_logprob / len(completion.token_ids)
    print(f"{per_token:7.3f}  {completion.text[:90]}")
stats = llm.stats().scheduler
print(f"{stats.forks} completions shared the prompt, {stats.block_copies} blocks were copied on write")
