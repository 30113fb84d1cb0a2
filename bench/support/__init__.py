"""What the benchmarks share: launchers to compare (peers), a job's life (job), tables and results (results)."""
