"""Complete several prompts in one batch and print what each cost.

python examples/offline.py
"""

from headrace import LLM, SamplingParams

llm = LLM("tale")
params = SamplingParams(max_tokens=64, temperature=0.0)
for out in llm.generate(["Once upon a time", "One rainy morning", "Far away, in a"], params):
    print(f"{out.prompt!r} -> {out.outputs[0].text!r}")
    print(f"    TTFT {out.metrics.ttft_s:.3f} s, TPOT {out.metrics.tpot_s:.4f} s\n")
