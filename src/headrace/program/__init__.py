"""A model as one ordered list of ops, which everything else reads. Standard library only.

Reading order: records, lower (the one walk over a spec's layers), placement (which memory the native path needs for
it), work (operations and bytes of an op). docs/architecture.md says who reads what.
"""
