"""The production scheduler in simulated time: requests, replicas behind a router, and what their clients would see."""
