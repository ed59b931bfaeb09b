"""``rlax audit``: proves from a run's records that nothing was lost and nothing trained twice."""

from rlax_plugin.commands.audit.auditor import audit
from rlax_plugin.commands.audit.report import Figures, Report, Rule, Violation

__all__ = ["Figures", "Report", "Rule", "Violation", "audit"]
