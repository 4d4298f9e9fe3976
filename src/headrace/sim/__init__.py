"""The time of a step without running it, and the scheduler in simulated time. Standard library and numpy, never torch.

Reading order: work, profile, profile_store, cost; planner.
"""
