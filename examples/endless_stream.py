"""Generate past the model's context in bounded memory: attention sinks and a window (StreamingLLM).

python examples/endless_stream.py
"""

from headrace import LLM, SamplingParams

llm = LLM("tale", attention_sinks=4, sliding_window=252, num_kv_blocks=40)
params = SamplingParams(max_tokens=1200, temperature=0.8, seed=3, ignore_eos=True)
most, out = 0, None
for out in llm.stream("Once upon a time", params):  # noqa: B007
    stats = llm.stats()
    most = max(most, stats.total_blocks - stats.free_blocks)
print(out.outputs[0].text[-300:])
print(
    f"\n{len(out.outputs[0].token_ids)} tokens from a model of 1024 positions, never more than {most} KV blocks"
)
