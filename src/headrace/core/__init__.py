"""Scheduling and KV bookkeeping: standard library only, no tensors, time only as an argument. In this order:

- `params`, `grammar`, `types`, `trees`, `executor`: what requests ask for, and what scheduler and executor exchange.
- `block_pool`, `prefix_cache`, `pins`: the blocks of one KV group, and which of them can be found again.
- `request`, `table`: a sequence, and the blocks that it holds. `states`: the slots of recurrent layers. `eviction`:
  when tokens are given up.
- `kv_manager`: all of them for a sequence, with `same_prompts` and `step_writes`; `kv_usage`: how full pools are.
- `policy`, `waiting`, `deadlines`, `admission`, `grants`, `step_budget`: who joins, and how much each gets.
- `scheduler`, `slice_results`, `scheduler_counts`: one step after the other.
- `engine`: the core's interface. `snapshot`, `snapshot_data`: what displays show. `steady`: many steps at once, for
  simulations.
- `record`, `forks`, `vectors`: fast values, what a forked child creates again, vectors as bytes.
"""
