"""What each technique gains on this machine, as one page: techniques, batches, attention, prefixes, quality, cost.

Reading order: sections, workload, techniques, traffic, attention, quality, run, plots, page, compare.
"""
