"""Talk to `headrace serve tale` with the official openai client (pip install openai).

headrace serve tale --port 8000 &
python examples/openai_client.py http://127.0.0.1:8000/v1
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Tell me a story about a bear who wants a drum."}],
    max_tokens=200,
    temperature=0,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
