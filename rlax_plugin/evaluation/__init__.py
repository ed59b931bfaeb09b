"""Measuring a policy: problem sets, the evaluator, pass@k and its intervals, results."""
