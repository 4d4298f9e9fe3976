"""Settings for a goal, by simulation on this machine's profile, and the checklist of techniques, by the cost model.

Reading order: goal, formula, trials, choose, settle; gains, checklist.
"""
