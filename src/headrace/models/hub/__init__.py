"""Models of the hub: what a reference names, which files a run needs, downloads, and the models in the hub's local
cache.

Reading order: reference, files, remote, transfer, fetch, then cached. The cache is huggingface_hub's own, in its
layout (https://huggingface.co/docs/huggingface_hub/guides/manage-cache); nothing else is kept.
"""
