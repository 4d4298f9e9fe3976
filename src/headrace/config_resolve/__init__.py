"""Values for the engine options that were left open, each with a reason: EngineConfig, model and machine ->
ResolvedConfig.

Reading order: defaults, sizes, drafts, reasons, resolution.
"""

from headrace.config_resolve.defaults import ASKED
from headrace.config_resolve.resolution import resolve

__all__ = ["ASKED", "resolve"]
