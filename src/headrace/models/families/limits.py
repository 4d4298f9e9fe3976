"""The largest sizes that a config may ask for."""

MAX_LAYERS = 1024
MAX_HIDDEN = 131_072
MAX_VOCAB = 1 << 22
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_INTERMEDIATE = 1 << 20
MAX_EXPERTS = 4096
MAX_ALL_EXPERTS = 1 << 16  # of all layers together
MAX_CHOICES = 64  # experts of a token
