"""A conversation: each turn finds the turns before it in the prefix cache.

python examples/chat.py
"""

from headrace import LLM, SamplingParams

llm = LLM("tale")
messages = []
for question in ("Tell me a story about a fox who wants a boat.", "Who helped the fox?", "Thank you!"):
    messages.append({"role": "user", "content": question})
    out = llm.chat(messages, SamplingParams(max_tokens=300, temperature=0.0), use_tqdm=False)[0]
    messages.append({"role": "assistant", "content": out.outputs[0].text})
    print(f"> {question}\n{out.outputs[0].text}")
    print(f"    {out.num_cached_tokens} of {len(out.prompt_token_ids)} prompt tokens came from the cache\n")
