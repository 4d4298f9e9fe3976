"""The time of a step without running it, and the scheduler in simulated time. Standard library and numpy, never torch.

- `work`: what a step must read and compute. `profile`, `profile_store`, `machine`: how fast a machine is.
- `cost`: the time of a step. `draft_cost`: that of drafting. `online`: corrected by what steps take. `step_budget`:
  prompts cut by time. `roofline_meter`: the share of the machine's limits.
- `workload/`: requests from a seed. `simulate/`: `headrace simulate`. `planner/`: `headrace plan`. `tuning/`: settings
  for a goal, and the checklist of techniques.
"""
