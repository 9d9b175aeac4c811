"""What happened to a run: findings with evidence and advice, and a verdict. `diagnose.diagnose` runs all."""
