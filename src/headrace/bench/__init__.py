"""Workloads, the engine settings that are compared, and readable reports."""
