"""What `./run test` runs, and how it counts: suites, reports, allowed skips, budgets of time."""
