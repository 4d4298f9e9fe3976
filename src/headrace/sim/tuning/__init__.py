"""Settings for a goal, and the checklist of techniques, from the cost model.

Reading order: goal, settle, gains, checklist.
"""
