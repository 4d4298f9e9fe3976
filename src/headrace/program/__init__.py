"""A model as one ordered list of ops, which everything else reads. Standard library only.

Reading order: records, lower, placement, work.
"""
