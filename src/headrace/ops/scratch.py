"""Limits of the temporaries of torch's ops and sampling. The memory plan reads them too. No torch here."""

MAX_GATHERED = 1 << 24
"""Key elements gathered at once, and attention logits made at once: bounds the scratch memory to 64 MiB a tensor."""

MAX_TILE_ROWS = 256
"""Query rows of one prefill tile. Keys past the tile's last position are not multiplied."""

CHUNK_ELEMENTS = 1 << 22
"""Largest number of float32 elements in a temporary of log-probabilities: 16 MiB each."""
