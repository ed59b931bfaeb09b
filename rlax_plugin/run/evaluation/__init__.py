"""Evaluation of a policy: problem sets, the evaluator, pass@k with intervals, and results."""
