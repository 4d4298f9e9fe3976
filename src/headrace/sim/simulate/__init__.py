"""The production scheduler in simulated time: requests, replicas behind a router, and what their clients would see.

Reading order: requests, generated, traces, load; deploy, times, executor, drafting, replica; router, failures, run;
tally, timeline, search; candidates, setting, cheapest.
"""
