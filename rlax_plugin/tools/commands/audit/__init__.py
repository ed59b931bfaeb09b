"""``rlax audit``: checks a run's records for prompts that were lost or trained twice."""

from rlax_plugin.tools.commands.audit.auditor import audit
from rlax_plugin.tools.commands.audit.report import Figures, Report, Rule, Violation

__all__ = ["Figures", "Report", "Rule", "Violation", "audit"]
